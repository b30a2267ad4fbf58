//! Journal.
pub mod blobs;
pub mod contract;
pub mod dir_blobs;
pub mod faulty;
pub mod file_log;
mod frame;
pub mod fs;
pub mod log;
pub mod memory;
