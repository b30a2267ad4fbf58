//! Paths for operators: health, readiness, the API's description, and metrics.

pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod requests;
