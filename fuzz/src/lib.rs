//! What the fuzz targets share.

pub mod checks;
pub mod credentials;
pub mod forged;
