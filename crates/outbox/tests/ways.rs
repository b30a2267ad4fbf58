//! The ways to the database: a pooler, without notifications, TLS, a server that crashes.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gapless_outbox::{
    BatchLimits, Consumer, ConsumerOptions, Database, FenceOptions, OutboxError, Payload, Reader,
    run_fence, status,
};
use support::writers::{KeyOrder, Writers, all_seqs, finish_prepared, prepare};
use support::{DEADLINE, Postgres, eventually, meanwhile};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

fn fence(database: Database) -> JoinHandle<()> {
    tokio::spawn(async move {
        let never = std::future::pending();
        run_fence(database, FenceOptions::default(), never).await.expect("the fence runs");
    })
}

/// Hands on what a consumer has done; what comes again after trouble is left out, as a consumer
/// does that knows rows by their number.
fn consume(database: Database) -> mpsc::UnboundedReceiver<u64> {
    let (send, receive) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let options = ConsumerOptions::default();
        let mut consumer = Consumer::open(database, "c", options).expect("a good name");
        let (mut order, mut last) = (KeyOrder::default(), 0);
        loop {
            let batch = consumer.next().await.expect("nothing is skipped");
            for row in &batch.rows {
                if row.seq <= last {
                    continue;
                }
                last = row.seq;
                if let (Some(key), Payload::Bytes(payload)) = (&row.key, &row.payload) {
                    order.saw(key, payload);
                }
                send.send(row.seq).expect("the test is there");
            }
            if let Err(error) = consumer.done(&batch).await {
                assert!(error.passes(), "{error}");
            }
        }
    });
    receive
}

async fn all_of(seen: &mut mpsc::UnboundedReceiver<u64>, expected: &[u64]) {
    let mut found = Vec::new();
    while found.len() < expected.len() {
        let seq = tokio::time::timeout(DEADLINE, seen.recv()).await;
        found.push(seq.expect("every row arrives").expect("the consumer is there"));
    }
    assert_eq!(found, expected);
}

struct Pooler {
    child: Child,
    dsn: String,
}

impl Pooler {
    /// A pgbouncer in transaction mode before a server.
    async fn start(server: &Postgres) -> Self {
        let folder = server.folder.path();
        let config = folder.join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host={dir} user=postgres\n[pgbouncer]\nlisten_port = 6543\n\
             listen_addr =\nunix_socket_dir = {dir}\nauth_type = any\npool_mode = transaction\n\
             max_client_conn = 100\ndefault_pool_size = 5\nserver_login_retry = 1\n",
            dir = folder.display()
        );
        fs::write(&config, text).expect("a file");
        let mut command = Command::new("pgbouncer");
        if let Some((uid, gid)) = server.user {
            command.uid(uid).gid(gid);
        }
        let child = command.arg(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("pgbouncer starts; is it installed?");
        let dsn = format!("host={} port=6543 user=postgres dbname=postgres", folder.display());
        eventually("pgbouncer answers", async || support::connect(&dsn).await.is_some()).await;
        Self { child, dsn }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_through_pgbouncer_in_transaction_mode_every_row_arrives_also_over_a_crash() {
    let mut server = Postgres::start().await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    prepare(&server.client().await).await;
    let pooler = Pooler::start(&server).await;
    let database = Database::parse(&pooler.dsn).expect("a connection string");
    // Directly notifications wake a reader; through the pooler they do not, and that is noticed.
    for (database, hears) in [(server.database(), true), (database.clone(), false)] {
        let mut reader = Reader::new(database, BatchLimits::default());
        reader.source().await.expect("a state");
        assert_eq!(reader.hears(), hears);
    }
    let _fence = fence(database.clone());
    let mut seen = consume(database);
    let writers = Writers::start(&server.dsn(), 8, 5);
    for _ in 0..2 {
        meanwhile(Duration::from_secs(2)).await;
        server.kill();
        server.run().await;
        // What a crash left prepared holds locks that all writers want.
        finish_prepared(&server.client().await).await;
    }
    meanwhile(Duration::from_secs(2)).await;
    writers.stop().await;
    let client = server.client().await;
    finish_prepared(&client).await;
    let all = all_seqs(&client).await;
    assert!(all.len() > 100, "only {} rows were written", all.len());
    all_of(&mut seen, &all).await;
    println!("{} rows", all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_without_any_notification_everything_arrives_later() {
    let server = Postgres::start().await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let client = server.client().await;
    // The fence notifies a channel that no consumer listens to.
    let _fence = fence(server.database());
    eventually("the fence runs", async || {
        status(&server.database()).await.is_ok_and(|state| state.fence_owner.is_some())
    })
    .await;
    let renamed = "UPDATE gapless.meta SET channel = 'elsewhere'";
    client.batch_execute(renamed).await.expect("another channel");
    let mut seen = consume(server.database());
    for round in 1..=3 {
        client.batch_execute("SELECT gapless.emit('t', NULL, 'upsert')").await.expect("a row");
        let seq = tokio::time::timeout(DEADLINE, seen.recv()).await;
        assert_eq!(seq.expect("in time"), Some(round));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_verified_and_a_password_is_taken_from_a_file() {
    let mut server = Postgres::start().await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    server.write("server.crt", &made.cert.pem(), false);
    server.write("server.key", &made.signing_key.serialize_pem(), false);
    let client = server.client().await;
    client
        .batch_execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'geheim'")
        .await
        .expect("a role");
    drop(client);
    server.write("pg_hba.conf", "local all all trust\nhostssl all all all scram-sha-256\n", false);
    server.stop();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
    let port = port.expect("an address").port();
    server.settings =
        vec!["ssl=on".into(), "listen_addresses=localhost".into(), format!("port={port}")];
    let local = format!(
        "host={} port={port} user=postgres dbname=postgres",
        server.folder.path().display()
    );
    let mut command = server.tool("postgres");
    command.arg("-D").arg(&server.data).arg("-k").arg(server.folder.path());
    for setting in &server.settings {
        command.args(["-c", setting]);
    }
    server.child =
        Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts"));
    eventually("PostgreSQL answers", async || support::connect(&local).await.is_some()).await;

    let folder = tempfile::tempdir().expect("a folder");
    let (ca, password) = (folder.path().join("ca.pem"), folder.path().join("password"));
    fs::write(&ca, made.cert.pem()).expect("a file");
    fs::write(&password, "geheim\n").expect("a file");
    let dsn = format!("postgres://app@localhost:{port}/postgres?sslmode=require");
    let database = Database::parse(&dsn).expect("a connection string");
    let stranger = database.clone().password_file(&password).expect("a file").connect().await;
    let told = stranger.err().expect("no root of the system made this certificate").to_string();
    assert!(told.contains("certificate") || told.contains("UnknownIssuer"), "{told}");
    let database = database.ca_file(&ca);
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, "falsch").expect("a file");
    let wrong = database.clone().password_file(&wrong).expect("a file").connect().await;
    assert!(matches!(wrong.err(), Some(OutboxError::NotAllowed { .. })));
    let database = database.password_file(&password).expect("a file");
    gapless_outbox::install(&database, &Default::default()).await.expect("installed over TLS");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_server_is_said_in_words() {
    let server = Postgres::start_with(&["default_transaction_read_only=on"]).await;
    let refused = gapless_outbox::install(&server.database(), &Default::default()).await;
    let told = refused.expect_err("it is read-only");
    assert!(matches!(told, OutboxError::ReadOnly { .. }), "{told}");
    let nowhere = Database::parse("host=/nowhere dbname=x user=y").expect("a connection string");
    let told = status(&nowhere).await.expect_err("no server is there").to_string();
    assert!(told.contains("/nowhere"), "{told}");
    let other = server.dsn().replace("dbname=postgres", "dbname=missing");
    let told = status(&Database::parse(&other).expect("good")).await.expect_err("no database");
    assert!(told.to_string().contains("missing"), "{told}");
    let told = status(&server.database()).await.expect_err("no outbox").to_string();
    assert!(told.contains("gapless outbox install"), "{told}");
    let small = Postgres::start_with(&["max_connections=5"]).await;
    let mut clients = Vec::new();
    while let Some(client) = small.try_client().await {
        clients.push(client);
    }
    let told = status(&small.database()).await.expect_err("no connection is left");
    assert!(matches!(told, OutboxError::TooManyConnections { .. }), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_read_only_or_full_for_a_while_is_waited_out() {
    let server = Postgres::start_with(&["max_connections=12"]).await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let fence = fence(server.database());
    let mut seen = consume(server.database());
    let client = server.client().await;
    let emit = async || {
        client.batch_execute("SELECT gapless.emit('t', NULL, 'upsert')").await.expect("a row");
    };
    emit().await;
    all_of(&mut seen, &[1]).await;
    // Read-only for all but us: the row waits, as nothing can be settled.
    client.batch_execute("SET default_transaction_read_only = off").await.expect("set");
    let is_read_only = async |wanted: &str| {
        let Some(other) = server.try_client().await else { return false };
        let shown = other.query_one("SHOW transaction_read_only", &[]).await;
        shown.is_ok_and(|row| row.get::<_, &str>(0) == wanted)
    };
    for setting in ["on", "off"] {
        let alter = format!("ALTER SYSTEM SET default_transaction_read_only = {setting}");
        client.batch_execute(&alter).await.expect("set");
        client.batch_execute("SELECT pg_reload_conf()").await.expect("reloaded");
        eventually("it is in force", async || is_read_only(setting).await).await;
        if setting == "on" {
            emit().await;
            meanwhile(Duration::from_secs(1)).await;
        }
    }
    all_of(&mut seen, &[2]).await;
    // Full: what was connected is thrown out, and others take its place.
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE application_name LIKE 'gapless%'";
    client.batch_execute(ended).await.expect("ended");
    let mut others = Vec::new();
    eventually("it is full", async || match server.try_client().await {
        Some(other) => {
            others.push(other);
            false
        }
        None => true,
    })
    .await;
    meanwhile(Duration::from_secs(1)).await;
    drop(others);
    emit().await;
    all_of(&mut seen, &[3]).await;
    assert!(!fence.is_finished());
}
