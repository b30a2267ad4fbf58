//! An outbox in PostgreSQL: rows written in the transaction of the data that they describe, read by
//! every consumer in the order of their numbers, none skipped.
//!
//! ```no_run
//! # async fn example() -> Result<(), gapless_outbox::OutboxError> {
//! use gapless_outbox::{Consumer, ConsumerOptions, Database};
//!
//! let database = Database::parse("postgres://app@localhost/shop")?;
//! let mut consumer = Consumer::open(database, "search-index", ConsumerOptions::default())?;
//! loop {
//!     let batch = consumer.next().await?;
//!     for row in &batch.rows {
//!         println!("{} {} {:?}", row.seq, row.topic, row.key);
//!     }
//!     consumer.done(&batch).await?;
//! }
//! # }
//! ```
//!
//! One process runs the fence ([`run_fence`], also `gapless outbox fence`); any number of
//! consumers read. What is settled, which process owns the work, and whether a consumer may go on
//! is decided by the machines of `gapless_core::outbox`; here are SQL, connections and time.
//! Nothing here needs a broker: moving rows into topics is `gapless-relay`.

mod clock;
mod consumer;
mod database;
mod driver;
mod dsn;
mod emit;
mod epoch;
mod error;
mod fence;
mod install;
mod lease;
mod names;
mod reader;
mod rights;
mod row;
mod session;
mod status;

pub use consumer::{Consumer, ConsumerOptions, From, Mirror, processed_once, reset};
pub use database::Database;
pub use dsn::shown as shown_dsn;
pub use emit::{Event, emit};
pub use epoch::begin_epoch;
pub use error::OutboxError;
pub use fence::{FenceOptions, run_fence};
pub use gapless_core::outbox::place::{EpochId, Place, PlaceError, Source, Standing};
pub use install::{InstallOptions, VERSION, install, uninstall, upgrade};
pub use lease::Lease;
pub use names::{Name, NameError};
pub use reader::{Batch, BatchLimits, Reader};
pub use rights::{Right, grant};
pub use row::{Op, Payload, Row};
pub use session::Session;
pub use status::{ConsumerStatus, Culprit, Observer, Status, measure, status};
pub use tokio_postgres;
