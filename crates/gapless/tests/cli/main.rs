//! The real binary, driven as a person or a program would.
//!
//! Nothing sleeps: waiting means reading lines with a deadline. Every child is ended by its id.

mod about;
mod auth;
mod backup;
mod config;
mod context;
mod doctor;
mod explain;
mod follow;
mod group;
mod identity;
mod init;
mod logs;
mod look;
mod metrics;
mod publish;
mod readme;
mod request;
mod serve;
mod support;
mod templates;
mod terminal;
mod tls;
mod top;
mod topic;
mod torture;
mod traces;
mod transfer;
