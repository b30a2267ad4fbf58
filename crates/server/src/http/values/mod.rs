//! Text to values and back: errors, parameters, publish options, messages and settings.

pub(crate) mod incoming;
pub(crate) mod params;
pub(crate) mod problem;
pub(crate) mod publish;
pub(crate) mod settings;
