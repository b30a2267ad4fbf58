//! One connection: statements with a deadline, and whether notifications arrive.
//!
//! Statements are never prepared by name, so that a pooler may give each transaction another
//! server connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row};

use crate::database::Database;
use crate::driver::Driver;
use crate::error::OutboxError;

/// How long a statement may take.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A value for a statement, with its type.
pub(crate) type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// Notifications that came.
#[derive(Default)]
struct Heard {
    notify: Notify,
    any: AtomicBool,
}

/// A connection.
pub struct Session {
    client: Client,
    heard: Arc<Heard>,
    driver: Arc<Driver>,
    background: JoinHandle<()>,
    server: Arc<str>,
    schema: String,
}

impl Session {
    pub(crate) fn begin<S, T>(
        database: &Database,
        client: Client,
        connection: Connection<S, T>,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let heard = Arc::new(Heard::default());
        let driver = Driver::new(drive(connection, Arc::clone(&heard)));
        let background = tokio::spawn(Arc::clone(&driver).run());
        let (server, schema) = (database.server().into(), database.schema().to_string());
        Self { client, heard, driver, background, server, schema }
    }

    /// The driver's client, for transactions of the caller's own.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    pub(crate) fn shared(&self) -> &Client {
        &self.client
    }

    /// Runs statements without values and without rows.
    pub(crate) async fn run(&self, sql: &str) -> Result<(), OutboxError> {
        self.within(self.client.batch_execute(sql)).await
    }

    /// All rows of a statement.
    pub(crate) async fn rows(
        &self,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, OutboxError> {
        self.within(self.client.query_typed(sql, values)).await
    }

    /// The only row of a statement that has one.
    pub(crate) async fn one(&self, sql: &str, values: &[Value<'_>]) -> Result<Row, OutboxError> {
        let row = self.rows(sql, values).await?.into_iter().next();
        row.ok_or_else(|| OutboxError::Unknown("no row".to_owned()))
    }

    pub(crate) async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, OutboxError> {
        match timeout(ANSWER_WAIT, self.driving(answer)).await {
            Ok(answer) => answer.map_err(|error| self.error(&error)),
            Err(_) => Err(OutboxError::TimedOut(ANSWER_WAIT.as_secs())),
        }
    }

    /// Waits for answers, and does the work of the connection meanwhile.
    pub(crate) async fn driving<T>(&self, answers: impl Future<Output = T>) -> T {
        self.driver.driving(answers).await
    }

    pub(crate) fn error(&self, error: &tokio_postgres::Error) -> OutboxError {
        OutboxError::from_query(error, &self.server, &self.schema)
    }

    /// Whether a notification ever came over this connection.
    pub(crate) fn hears(&self) -> bool {
        self.heard.any.load(Ordering::Relaxed)
    }

    /// Resolves at the next notification, or at one that came since the last call.
    pub(crate) async fn notified(&self) {
        self.heard.notify.notified().await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// Moves bytes and takes in notifications, until the connection ends.
async fn drive<S, T>(mut connection: Connection<S, T>, heard: Arc<Heard>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let next = |connection: &mut Connection<S, T>, context: &mut std::task::Context<'_>| {
        connection.poll_message(context)
    };
    while let Some(message) = std::future::poll_fn(|context| next(&mut connection, context)).await {
        match message {
            Ok(AsyncMessage::Notification(_)) => {
                heard.any.store(true, Ordering::Relaxed);
                heard.notify.notify_one();
            }
            Ok(_) => {}
            // The callers that wait for answers get the error.
            Err(_) => break,
        }
    }
}
