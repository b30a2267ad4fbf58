//! What can go wrong with an outbox, in words that say what to do.

use gapless_core::outbox::fence::FenceError;
use gapless_core::outbox::place::PlaceError;
use tokio_postgres::error::SqlState;

use crate::names::NameError;

/// Why something did not work. Offsets, the fence and rows are unchanged in every case but
/// [`OutboxError::Unknown`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// The connection string cannot be used.
    #[error("the connection string cannot be used: {0}")]
    Dsn(String),
    /// A name is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file with a password or certificates cannot be used.
    #[error("cannot use {path}: {why}")]
    File {
        /// Which file.
        path: String,
        /// Why not.
        why: String,
    },
    /// No connection came about.
    #[error("cannot reach PostgreSQL at {server}: {why}")]
    Unreachable {
        /// Where.
        server: String,
        /// Why not.
        why: String,
    },
    /// The server has as many connections as it allows.
    #[error(
        "{server} is out of connections: raise max_connections, close some, or connect through a \
         pooler"
    )]
    TooManyConnections {
        /// Where.
        server: String,
    },
    /// The server or database refuses this user.
    #[error("{server} refuses the user: {why}")]
    NotAllowed {
        /// Where.
        server: String,
        /// Its words.
        why: String,
    },
    /// The connection was lost before an answer came.
    #[error("the connection to PostgreSQL was lost: {0}")]
    Lost(String),
    /// No answer came in time.
    #[error("PostgreSQL did not answer within {0} s")]
    TimedOut(u64),
    /// The server is too old.
    #[error("PostgreSQL {found} is not supported: use version 13 or newer")]
    TooOld {
        /// Its version.
        found: String,
    },
    /// There is no outbox in this schema.
    #[error("there is no outbox in schema {schema}: create it with `gapless outbox install`")]
    NotInstalled {
        /// Which schema.
        schema: String,
    },
    /// There is one already.
    #[error("schema {schema} has an outbox of version {version} already")]
    Installed {
        /// Which schema.
        schema: String,
        /// Its version.
        version: i32,
    },
    /// The tables are of another version than this program.
    #[error(
        "the outbox has version {found}, this program knows {known}: {}",
        if found < known { "run `gapless outbox upgrade`" } else { "use a newer gapless" }
    )]
    OtherVersion {
        /// Of the tables.
        found: i32,
        /// Of this program.
        known: i32,
    },
    /// It must be written, but this server follows another, or is read-only.
    #[error(
        "{server} is read-only (a standby, or default_transaction_read_only): connect to the \
         primary for what writes; consumers may read from a standby"
    )]
    ReadOnly {
        /// Where.
        server: String,
    },
    /// The sequence could give numbers out of order.
    #[error("the sequence of the outbox cannot be trusted: {0}")]
    Sequence(String),
    /// The numbers went back.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The consumer must not go on from where it stands.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Another instance of the consumer has moved the offset or holds its lease.
    #[error("another instance of consumer {consumer} is at work: this one stopped")]
    Taken {
        /// Which consumer.
        consumer: String,
    },
    /// There is no such consumer.
    #[error("there is no consumer {consumer}: it is created when it first runs")]
    NoConsumer {
        /// Which consumer.
        consumer: String,
    },
    /// PostgreSQL refused a statement.
    #[error("PostgreSQL refused a statement: {message} (SQLSTATE {code})")]
    Sql {
        /// Its words.
        message: String,
        /// Its code.
        code: String,
    },
    /// The answer is not what was asked for.
    #[error("PostgreSQL answered something else than was asked for: {0}")]
    Unknown(String),
}

impl OutboxError {
    /// Whether the same may work a little later without anyone doing anything about it.
    pub fn passes(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::TooManyConnections { .. }
                | Self::Lost(_)
                | Self::TimedOut(_)
                | Self::ReadOnly { .. }
                | Self::Sql { .. }
        )
    }

    /// What an error of the driver means, on a connection that worked.
    pub(crate) fn from_query(error: &tokio_postgres::Error, server: &str, schema: &str) -> Self {
        let Some(told) = error.as_db_error() else {
            return if error.is_closed() {
                Self::Lost("the server closed it".to_owned())
            } else {
                Self::Lost(with_causes(error))
            };
        };
        let server = server.to_owned();
        let message = match told.hint() {
            Some(hint) => format!("{} ({hint})", told.message()),
            None => told.message().to_owned(),
        };
        match told.code() {
            &SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME => {
                Self::NotInstalled { schema: schema.to_owned() }
            }
            &SqlState::READ_ONLY_SQL_TRANSACTION => Self::ReadOnly { server },
            &SqlState::TOO_MANY_CONNECTIONS => Self::TooManyConnections { server },
            // What a session that stands is refused is a part of the outbox.
            &SqlState::INSUFFICIENT_PRIVILEGE if !message.contains("for database") => {
                let why = format!("{message}; its owner can allow it: `gapless outbox grant`");
                Self::NotAllowed { server, why }
            }
            &SqlState::INSUFFICIENT_PRIVILEGE
            | &SqlState::INVALID_PASSWORD
            | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | &SqlState::INVALID_CATALOG_NAME => Self::NotAllowed { server, why: message },
            &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN => Self::Lost(message),
            &SqlState::CANNOT_CONNECT_NOW => Self::Unreachable { server, why: message },
            code => Self::Sql { message, code: code.code().to_owned() },
        }
    }
}

/// The words of an error and of what caused it.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
