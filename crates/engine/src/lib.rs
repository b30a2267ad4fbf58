//! A store on object storage: the journal's log and blobs over the crate `object_store`.
//!
//! The same broker runs on it as on files. Nodes keep no state of their own; one that dies is replaced
//! by another, which takes the log over. There is no agreement between processes here: the object store's
//! create-if-absent does (`docs/adr/0017`).
//!
//! Where things are: [`store`] is a store as a whole, [`log`](mod@log) and `writer` the log, [`blobs`]
//! and `cache` the blobs, [`rule`] what a writer may conclude, `remote` requests and their errors,
//! `check` the proof at start, `survey` a look for the doctor, [`Backup`] copies with checksums,
//! [`Server`] a running server to copy from, [`faulty`] a store that fails on demand.
//!
//! Not here: topics, and who should own a store.

mod backup;
pub mod blobs;
mod cache;
mod check;
pub mod clock;
mod copy;
pub mod faulty;
pub mod log;
mod object;
mod place;
mod remote;
pub mod rule;
mod source;
pub mod store;
mod survey;
mod writer;

pub use backup::{Backup, BackupError, Index, Taken};
pub use object::OBJECT_VERSION;
pub use remote::Spans;
pub use source::{Server, ServerAccess};
pub use store::{JOURNALS_MAX, Store, StoreError, StoreOptions, Watch};
pub use survey::Survey;
pub use writer::FRAME_BYTES_MAX;
