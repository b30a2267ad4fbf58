//! Roles that do not own the outbox: what each needs, and not more.

use crate::database::Database;
use crate::error::OutboxError;
use crate::install::{Names, writable};

/// What a role may do with an outbox that it does not own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Emit rows, and attach tables of its own; read nothing.
    Write,
    /// Run the fence, relays and consumers: read rows, move offsets; write and remove none.
    Run,
}

impl Right {
    /// The rights, each as what comes between `GRANT` and `TO`.
    fn grants(self, names: &Names) -> Vec<String> {
        let Names { schema, outbox, offsets, .. } = names;
        let functions = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|name| format!("{schema}.{name}")).collect();
            format!("EXECUTE ON FUNCTION {}", all.join(", "))
        };
        let usage = format!("USAGE ON SCHEMA {schema}");
        match self {
            Self::Write => {
                vec![usage, functions(&["emit", "emit_bytes", "emit_row", "attach", "detach"])]
            }
            Self::Run => vec![
                usage,
                format!(
                    "SELECT ON {schema}.{outbox}, {schema}.{outbox}_seq_seq, {schema}.meta, \
                     {schema}.fence, {schema}.life, {schema}.epochs, {schema}.leases, \
                     {schema}.{offsets}, {schema}.dead_letters"
                ),
                format!(
                    "INSERT ON {schema}.life, {schema}.leases, {schema}.{offsets}, \
                     {schema}.processed, {schema}.dead_letters"
                ),
                format!("UPDATE ON {schema}.leases, {schema}.{offsets}"),
                format!("UPDATE (safe_seq, updated_at) ON {schema}.fence"),
                functions(&[
                    "processed_once",
                    "drawn",
                    "look",
                    "publish",
                    "source",
                    "make_partitions",
                    "remove_old",
                    "begin_epoch",
                ]),
            ],
        }
    }
}

/// Allows a role what it needs, and nothing else.
///
/// # Errors
/// When there is no such role, or the outbox is another's.
pub async fn grant(database: &Database, role: &str, right: Right) -> Result<(), OutboxError> {
    let session = writable(database).await?;
    let names = Names::read(&session, database).await?;
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let grants = right.grants(&names);
    let grants: String = grants.iter().map(|what| format!("GRANT {what} TO {role};\n")).collect();
    session.run(&format!("BEGIN;\n{grants}COMMIT;")).await
}
