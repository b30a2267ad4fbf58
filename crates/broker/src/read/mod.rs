//! Reading: where a subscription begins, following a topic or a pattern, single look-ups.
//!
//! Reading never writes. The places and what may be handed out are machines of `core`.

pub(crate) mod delivery;
pub(crate) mod explain;
pub(crate) mod follow_pattern;
pub(crate) mod follow_topic;
pub(crate) mod lookup;
pub(crate) mod recovery_memory;
pub(crate) mod subscribe;
pub(crate) mod subscription;
