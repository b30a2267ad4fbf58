//! Noticing that the numbers have another history: a promotion, a restore, a dump.
//!
//! The newest epoch carries the system identifier and the timeline of the server it began on;
//! a server with others begins a new one (`begin_epoch` in the database). A copy of the files
//! that was simply started again has neither: then it is begun by hand.

use tokio_postgres::types::Type;

use crate::database::Database;
use crate::error::OutboxError;
use crate::install::{Names, writable};
use crate::session::Session;

/// Begins a new epoch by hand, after the database was replaced by an older copy.
///
/// # Errors
/// When the database cannot be reached or written.
pub async fn begin_epoch(database: &Database, reason: &str) -> Result<(), OutboxError> {
    let session = writable(database).await?;
    let names = Names::read(&session, database).await?;
    begin(&session, &names, reason, true).await.map(|_| ())
}

/// Begins a new epoch if this is another server than the one of the newest; returns whether it did.
pub(crate) async fn notice(session: &Session, names: &Names) -> Result<bool, OutboxError> {
    begin(session, names, "another server or timeline", false).await
}

async fn begin(
    session: &Session,
    names: &Names,
    reason: &str,
    always: bool,
) -> Result<bool, OutboxError> {
    let sql = format!("SELECT {}.begin_epoch($1, $2)", names.schema);
    Ok(session.one(&sql, &[(&reason, Type::TEXT), (&always, Type::BOOL)]).await?.get(0))
}
