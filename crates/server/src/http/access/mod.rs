//! Who sends a request, which right each path needs, and logging in.

pub(crate) mod authorization;
pub(crate) mod login;
pub(crate) mod rights;
