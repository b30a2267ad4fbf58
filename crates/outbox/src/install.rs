//! Creating, upgrading and removing the tables of an outbox, each in one transaction.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::database::Database;
use crate::error::OutboxError;
use crate::names::Name;
use crate::session::Session;

/// The version of the tables and functions that this program creates and knows.
pub const VERSION: i32 = 2;

/// The SQL that upgrades the version before to each one; the first creates the tables.
const STEPS: [&str; VERSION as usize] = [include_str!("sql/v1.sql"), include_str!("sql/v2.sql")];

/// The functions of this version, which take the place of older ones.
const FUNCTIONS: &str = include_str!("sql/functions.sql");

/// How a new outbox shall be.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// The table of the rows.
    pub outbox: Name,
    /// The table of the consumers' offsets.
    pub offsets: Name,
    /// How many numbers a partition holds.
    pub partition_rows: u64,
    /// How long rows are kept.
    pub retention: Duration,
}

impl Default for InstallOptions {
    fn default() -> Self {
        Self {
            outbox: "outbox".parse().expect("it is a good name"),
            offsets: "consumer_offsets".parse().expect("it is a good name"),
            partition_rows: 1_000_000,
            retention: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}

/// Creates an outbox in the schema of the database.
///
/// # Errors
/// When there is one already, or the user may not create it.
pub async fn install(database: &Database, options: &InstallOptions) -> Result<(), OutboxError> {
    let session = writable(database).await?;
    let schema = database.schema();
    match version(&session, database).await {
        Err(OutboxError::NotInstalled { .. }) => {}
        Ok(version) => return Err(OutboxError::Installed { schema: schema.to_string(), version }),
        Err(error) => return Err(error),
    }
    let names = [&options.outbox, &options.offsets].map(Name::as_str);
    let sql = steps(0, schema.as_str(), names)
        .replace("{partition_rows}", &options.partition_rows.to_string())
        .replace("{retention_s}", &options.retention.as_secs().to_string());
    session.run(&sql).await
}

/// Brings tables and functions to the version of this program; returns the version before. Rows
/// can be written meanwhile; they wait for it.
///
/// # Errors
/// When there is no outbox, or it is newer than this program.
pub async fn upgrade(database: &Database) -> Result<i32, OutboxError> {
    let session = writable(database).await?;
    let found = version(&session, database).await?;
    if found > VERSION {
        return Err(OutboxError::OtherVersion { found, known: VERSION });
    }
    if found < VERSION {
        let schema = database.schema().as_str();
        let sql = format!("SELECT outbox, offsets FROM {schema}.meta");
        let row = session.one(&sql, &[]).await?;
        let names = [row.get(0), row.get(1)];
        session.run(&steps(usize::try_from(found).unwrap_or(0), schema, names)).await?;
    }
    Ok(found)
}

/// One transaction from a version to this program's.
fn steps(from: usize, schema: &str, [outbox, offsets]: [&str; 2]) -> String {
    let steps = STEPS[from..].concat();
    let told = "UPDATE {schema}.meta SET version = {version};";
    format!("BEGIN;\n{steps}\n{FUNCTIONS}\n{told}\nCOMMIT;")
        .replace("{schema}", schema)
        .replace("{outbox}", outbox)
        .replace("{offsets}", offsets)
        .replace("{version}", &VERSION.to_string())
}

/// Removes the outbox with all its rows, offsets and functions.
///
/// # Errors
/// When there is none, when a table still emits into it, or when the user may not.
pub async fn uninstall(database: &Database) -> Result<(), OutboxError> {
    let session = writable(database).await?;
    version(&session, database).await?;
    let schema = database.schema();
    let triggers = "SELECT tgrelid::regclass::text FROM pg_trigger \
                    WHERE tgname = $1 AND NOT tgisinternal ORDER BY 1 LIMIT 1";
    let name = format!("{schema}_emit");
    let attached = session.rows(triggers, &[(&name, Type::TEXT)]).await?;
    if let Some(row) = attached.first() {
        let table: String = row.get(0);
        let message = format!("table {table} still emits: SELECT {schema}.detach('{table}')");
        return Err(OutboxError::Sql { message, code: "2BP01".to_owned() });
    }
    if let Some(row) = session.rows(&strangers(schema), &[]).await?.first() {
        let stranger: String = row.get(0);
        let message = format!("schema {schema} also has {stranger}: move it elsewhere, or drop it");
        return Err(OutboxError::Sql { message, code: "2BP01".to_owned() });
    }
    session.run(&format!("DROP SCHEMA {schema} CASCADE")).await
}

/// Selects a table or a function of a schema that does not belong to its outbox.
fn strangers(schema: &Name) -> String {
    format!(
        "SELECT 'table ' || c.relname FROM pg_class c, {schema}.meta m
         WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND NOT c.relispartition
           AND c.relname NOT IN (m.outbox, m.offsets, 'meta', 'fence', 'life', 'epochs', 'leases',
                                 'partitions', 'processed', 'dead_letters')
         UNION ALL
         SELECT 'function ' || p.proname FROM pg_proc p
         WHERE p.pronamespace = '{schema}'::regnamespace AND p.proname NOT IN (
             'emit', 'emit_bytes', 'emit_row', 'attach', 'detach', 'processed_once', 'drawn', 'look',
             'make_partitions', 'remove_old', 'publish', 'source', 'begin_epoch')
         LIMIT 1"
    )
}

/// A connection to a server that can be written.
pub(crate) async fn writable(database: &Database) -> Result<Session, OutboxError> {
    let session = database.connect().await?;
    let row = session.one("SELECT pg_is_in_recovery()", &[]).await?;
    if row.get(0) {
        return Err(OutboxError::ReadOnly { server: database.server().to_owned() });
    }
    Ok(session)
}

async fn version(session: &Session, database: &Database) -> Result<i32, OutboxError> {
    let sql = format!("SELECT version FROM {}.meta", database.schema());
    Ok(session.one(&sql, &[]).await?.get(0))
}

/// The names of an outbox as it was installed.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) outbox: String,
    pub(crate) offsets: String,
    pub(crate) channel: String,
}

impl Names {
    /// Reads them, and refuses an outbox of another version.
    pub(crate) async fn read(session: &Session, database: &Database) -> Result<Self, OutboxError> {
        let schema = database.schema().to_string();
        let sql = format!("SELECT version, outbox, offsets, channel FROM {schema}.meta");
        let row = session.one(&sql, &[]).await?;
        let found: i32 = row.get(0);
        if found != VERSION {
            return Err(OutboxError::OtherVersion { found, known: VERSION });
        }
        let (outbox, offsets, channel) = (row.get(1), row.get(2), row.get(3));
        Ok(Self { schema, outbox, offsets, channel })
    }
}
