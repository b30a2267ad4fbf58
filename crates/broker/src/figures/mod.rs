//! What can be observed: totals, metrics and events.

pub(crate) mod counts;
pub(crate) mod events;
pub(crate) mod metrics;
pub(crate) mod totals;
