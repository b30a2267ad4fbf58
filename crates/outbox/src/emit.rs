//! Writing a row from Rust, inside a transaction of the caller's.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::names::Name;
use crate::row::Op;

/// A row to be written.
#[derive(Clone, Debug, Default)]
pub struct Event<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The key, if there is one.
    pub key: Option<&'a str>,
    /// What happened to what the key names.
    pub op: Op,
    /// The id by which consumers recognise it; generated if there is none.
    pub event_id: Option<&'a str>,
    /// What kind of thing it is.
    pub kind: Option<&'a str>,
    /// Why it happened.
    pub reason: Option<&'a str>,
    /// Its content, if consumers do not look it up.
    pub payload: Option<&'a [u8]>,
}

/// Writes a row; returns its seq. It is there if, and only if, the transaction commits.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
/// use gapless_outbox::{Event, emit};
///
/// let schema = "gapless".parse().expect("a good name");
/// let transaction = client.transaction().await?;
/// transaction.execute("INSERT INTO orders (id, item) VALUES (7, 'tea')", &[]).await?;
/// let event = Event { topic: "shop.orders", key: Some("7"), ..Event::default() };
/// emit(&transaction, &schema, &event).await?;
/// transaction.commit().await
/// # }
/// ```
///
/// # Errors
/// When PostgreSQL refuses it; then the transaction is to be rolled back.
pub async fn emit(
    transaction: &impl GenericClient,
    schema: &Name,
    event: &Event<'_>,
) -> Result<u64, tokio_postgres::Error> {
    let sql = format!("SELECT {schema}.emit_bytes($1, $2, $3, $4, $5, $6, $7)");
    let op = event.op.name();
    let rows = transaction
        .query_typed(
            &sql,
            &[
                (&event.topic, Type::TEXT),
                (&event.key, Type::TEXT),
                (&op, Type::TEXT),
                (&event.event_id, Type::TEXT),
                (&event.payload, Type::BYTEA),
                (&event.kind, Type::TEXT),
                (&event.reason, Type::TEXT),
            ],
        )
        .await?;
    let seq: i64 = rows.first().map_or(0, |row| row.get(0));
    Ok(u64::try_from(seq).unwrap_or(0))
}
