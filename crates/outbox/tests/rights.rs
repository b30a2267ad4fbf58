//! Roles that do not own the outbox: what they can do with the rights that are granted, and what
//! they cannot.

mod support;

use gapless_outbox::{
    BatchLimits, Consumer, ConsumerOptions, Database, FenceOptions, InstallOptions, OutboxError,
    Payload, Place, Reader, Right, run_fence, status,
};
use support::{DEADLINE, Postgres, eventually};
use tokio_postgres::Client;

async fn installed() -> (Postgres, Client) {
    let server = Postgres::start().await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let client = server.client().await;
    (server, client)
}

/// The same database, as another role.
fn as_role(server: &Postgres, role: &str) -> String {
    server.dsn().replace("user=postgres", &format!("user={role}"))
}

async fn refused(client: &Client, statements: &[&str]) {
    for statement in statements {
        let told = client.batch_execute(statement).await.expect_err(statement);
        let code = told.code().map(tokio_postgres::error::SqlState::code);
        assert_eq!(code, Some("42501"), "{statement}: {told:?}");
    }
}

/// What only the owner of an outbox may do.
const OWNERS: [&str; 8] = [
    "INSERT INTO gapless.outbox (op, event_id, topic_id) VALUES ('upsert', 'e', 't')",
    "INSERT INTO gapless.outbox (seq, op, event_id, topic_id) OVERRIDING SYSTEM VALUE
     VALUES (1, 'upsert', 'e', 't')",
    "DELETE FROM gapless.outbox",
    "UPDATE gapless.outbox SET topic_id = 'x'",
    "TRUNCATE gapless.outbox",
    "UPDATE gapless.fence SET floor_seq = 9",
    "UPDATE gapless.meta SET retention = '1 s'",
    "SELECT setval('gapless.outbox_seq_seq', 1)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_a_writer_can_emit_and_attach_but_reads_and_changes_nothing() {
    let (server, client) = installed().await;
    let sql = "CREATE ROLE webapp LOGIN; CREATE ROLE stranger LOGIN;
               GRANT CREATE ON SCHEMA public TO webapp;
               SELECT gapless.emit('secrets', 'k', 'upsert', payload => '{\"pin\": 1234}');";
    client.batch_execute(sql).await.expect("roles");
    gapless_outbox::grant(&server.database(), "webapp", Right::Write).await.expect("granted");

    let webapp = support::connect(&as_role(&server, "webapp")).await.expect("a connection");
    let sql = "SELECT gapless.emit('t', 'k', 'upsert', payload => '{}');
               SELECT gapless.emit_bytes('t', 'k', 'upsert', payload => '\\x00');
               CREATE TABLE orders (id bigint PRIMARY KEY);
               SELECT gapless.attach('orders', 'shop.orders', 'id');
               INSERT INTO orders VALUES (1); DELETE FROM orders;";
    webapp.batch_execute(sql).await.expect("it may write, also by trigger");
    let wrong = "SELECT gapless.emit('t', 'k', 'other')";
    webapp.batch_execute(wrong).await.expect_err("there is no such op");
    refused(&webapp, &OWNERS).await;
    let reads = [
        "SELECT payload FROM gapless.outbox",
        "SELECT seq FROM gapless.outbox",
        "SELECT count(*) FROM gapless.outbox",
        "SELECT payload FROM gapless.outbox_0",
        "COPY gapless.outbox_rest TO STDOUT",
        "SELECT last_value FROM gapless.outbox_seq_seq",
        "SELECT nextval('gapless.outbox_seq_seq')",
        "SELECT * FROM gapless.dead_letters",
        "SELECT * FROM gapless.consumer_offsets",
        "SELECT safe_seq FROM gapless.fence",
        "SELECT gapless.look()",
        "SELECT gapless.publish(99, '')",
        "SELECT gapless.begin_epoch('mine')",
        "SELECT gapless.remove_old()",
    ];
    refused(&webapp, &reads).await;
    // Functions and operators of the caller's do not get into those that run as the owner.
    let sql = "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql AS $$
                   BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
               CREATE FUNCTION public.gen_random_uuid() RETURNS uuid LANGUAGE plpgsql AS $$
                   BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
               CREATE FUNCTION public.convert_to(text, name) RETURNS bytea LANGUAGE plpgsql AS $$
                   BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
               CREATE DOMAIN public.text AS int CHECK (false);
               CREATE TEMP TABLE outbox (op pg_catalog.text);
               SET search_path = pg_temp, public, pg_catalog;
               SELECT gapless.emit('t', 'k', 'upsert', payload => '{}');
               INSERT INTO orders VALUES (2);
               RESET search_path; DROP DOMAIN public.text;";
    webapp.batch_execute(sql).await.expect("written as ever");
    // What a table's columns turn into in JSON is decided by its owner, with its rights only.
    let sql = "CREATE TYPE mood AS ENUM ('good');
               CREATE FUNCTION spy(mood) RETURNS json LANGUAGE plpgsql AS $$
                   BEGIN RETURN json_build_object('by', current_user); END $$;
               CREATE CAST (mood AS json) WITH FUNCTION spy(mood);
               CREATE TABLE moods (id bigint PRIMARY KEY, mood mood);
               SELECT gapless.attach('moods', 'moods', 'id');
               INSERT INTO moods VALUES (1, 'good');";
    webapp.batch_execute(sql).await.expect("a table with a cast of its own");
    let sql = "SELECT convert_from(payload, 'UTF8') FROM gapless.outbox WHERE topic_id = 'moods'";
    let text: String = client.query_one(sql, &[]).await.expect("a row").get(0);
    assert!(text.contains("webapp"), "{text}");

    let stranger = support::connect(&as_role(&server, "stranger")).await.expect("a connection");
    refused(&stranger, &["SELECT gapless.emit('t', 'k', 'upsert')"]).await;
    let count = client.query_one("SELECT count(*) FROM gapless.outbox", &[]).await.expect("rows");
    assert_eq!(count.get::<_, i64>(0), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relays_role_runs_fence_reader_and_consumer_but_writes_and_removes_no_rows() {
    let server = Postgres::start().await;
    let small = InstallOptions { partition_rows: 10, ..InstallOptions::default() };
    gapless_outbox::install(&server.database(), &small).await.expect("installed");
    let client = server.client().await;
    client.batch_execute("CREATE ROLE mover LOGIN").await.expect("a role");
    let database = Database::parse(&as_role(&server, "mover")).expect("a connection string");
    let told = status(&database).await.expect_err("nothing is granted yet");
    assert!(matches!(told, OutboxError::NotAllowed { .. }), "{told}");
    assert!(told.to_string().contains("gapless outbox grant"), "{told}");
    gapless_outbox::grant(&server.database(), "mover", Right::Run).await.expect("granted");

    // The whole life of an outbox: a fence, partitions made and dropped, an epoch, a consumer that
    // puts a row aside and remembers one, a relay's mirror.
    let rows = "SELECT gapless.emit('t', i::text, 'upsert') FROM generate_series(1, 45) i";
    client.batch_execute(rows).await.expect("rows");
    let fence = run_fence(database.clone(), FenceOptions::default(), std::future::pending());
    let fence = tokio::spawn(fence);
    eventually("it is settled", async || status(&database).await.is_ok_and(|all| all.safe == 45))
        .await;
    let mut reader = Reader::new(database.clone(), BatchLimits::default());
    let batch = reader.next(Place { epoch: None, seq: 0 });
    let batch = tokio::time::timeout(DEADLINE, batch).await.expect("in time").expect("rows");
    assert_eq!((batch.rows.len(), &batch.rows[0].payload), (45, &Payload::None));
    let mut consumer = Consumer::open(database.clone(), "c", ConsumerOptions::default());
    let consumer = consumer.as_mut().expect("a good name");
    let batch = tokio::time::timeout(DEADLINE, consumer.next()).await.expect("in time");
    let batch = batch.expect("rows");
    consumer.bury(&batch.rows[0], 1, "not wanted").await.expect("put aside");
    let mut session = database.connect().await.expect("a connection");
    let transaction = session.client().transaction().await.expect("a transaction");
    let schema = "gapless".parse().expect("a name");
    let first = gapless_outbox::processed_once(&transaction, &schema, "c", "e1").await;
    assert!(first.expect("remembered"));
    consumer.done_in(&transaction, &batch).await.expect("moved");
    transaction.commit().await.expect("committed");
    gapless_outbox::begin_epoch(&database, "by hand").await.expect("an epoch");
    let mut mirror = gapless_outbox::Mirror::new(database.clone(), "relay");
    mirror.tell(Place { epoch: None, seq: 45 }).await.expect("told");
    gapless_outbox::reset(&database, "c", gapless_outbox::From::Now).await.expect("reset");

    // Of another role's transaction it is told the application, and how to be told more.
    let open = server.client().await;
    let hold = "SET application_name = 'billing'; BEGIN; SELECT gapless.emit('t', 'k', 'upsert')";
    open.batch_execute(hold).await.expect("an open transaction");
    let mut told = String::new();
    eventually("it is named", async || {
        let culprit = status(&database).await.expect("a state").culprit;
        told = culprit.map_or_else(String::new, |culprit| culprit.to_string());
        told.contains("\"billing\"")
    })
    .await;
    assert!(told.contains("pg_read_all_stats"), "{told}");
    open.batch_execute("ROLLBACK").await.expect("rolled back");

    let mover = support::connect(&as_role(&server, "mover")).await.expect("a connection");
    refused(&mover, &OWNERS).await;
    refused(&mover, &["SELECT gapless.emit('t', 'k', 'upsert')"]).await;
    client.batch_execute("UPDATE gapless.meta SET retention = '0 s'").await.expect("changed");
    for _ in 0..9 {
        mover.batch_execute("SELECT gapless.remove_old()").await.expect("partitions are dropped");
    }
    let state = status(&database).await.expect("a state");
    assert!(state.floor >= 39, "{state:?}");
    assert!(!fence.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_takes_the_table_from_writers_and_keeps_what_they_wrote() {
    let (server, client) = installed().await;
    // As the first version left it: writers had rights on the table, functions ran as the caller.
    let sql = "CREATE ROLE webapp LOGIN; GRANT USAGE ON SCHEMA gapless TO webapp;
               GRANT INSERT, SELECT (seq) ON gapless.outbox TO webapp;
               CREATE OR REPLACE FUNCTION gapless.emit(
                   topic text, key text, op text, event_id text DEFAULT NULL,
                   payload jsonb DEFAULT NULL, kind text DEFAULT NULL, reason text DEFAULT NULL,
                   created_at timestamptz DEFAULT NULL
               ) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN 0; END $$;
               UPDATE gapless.meta SET version = 1;
               INSERT INTO gapless.outbox (op, event_id, topic_id) VALUES ('upsert', 'old', 't');";
    client.batch_execute(sql).await.expect("the first version");
    let told = status(&server.database()).await.expect_err("it is too old").to_string();
    assert!(told.contains("gapless outbox upgrade"), "{told}");
    assert_eq!(gapless_outbox::upgrade(&server.database()).await.expect("upgraded"), 1);
    assert_eq!(gapless_outbox::upgrade(&server.database()).await.expect("nothing to do"), 2);

    let webapp = support::connect(&as_role(&server, "webapp")).await.expect("a connection");
    let sql = "SELECT gapless.emit('t', 'k', 'upsert', 'new')";
    webapp.batch_execute(sql).await.expect("it may still write");
    refused(&webapp, &OWNERS).await;
    refused(&webapp, &["SELECT seq FROM gapless.outbox"]).await;
    let sql = "SELECT string_agg(event_id, ',' ORDER BY seq) FROM gapless.outbox";
    let ids: String = client.query_one(sql, &[]).await.expect("rows").get(0);
    assert_eq!(ids, "old,new");
    client.batch_execute("UPDATE gapless.meta SET version = 3").await.expect("changed");
    let told = gapless_outbox::upgrade(&server.database()).await.expect_err("it is too new");
    assert!(told.to_string().contains("use a newer gapless"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_outboxs_own_is_not_removed_with_it() {
    let server = Postgres::start().await;
    let database = server.database().in_schema("public".parse().expect("a name"));
    let client = server.client().await;
    client.batch_execute("CREATE TABLE orders (id bigint)").await.expect("a table");
    gapless_outbox::install(&database, &Default::default()).await.expect("installed");
    let told = gapless_outbox::uninstall(&database).await.expect_err("it would drop a table");
    assert!(told.to_string().contains("table orders"), "{told}");
    let sql = "CREATE SCHEMA shop; ALTER TABLE orders SET SCHEMA shop";
    client.batch_execute(sql).await.expect("moved");
    gapless_outbox::uninstall(&database).await.expect("now it may");
    client.batch_execute("SELECT * FROM shop.orders").await.expect("the table is there");
}
