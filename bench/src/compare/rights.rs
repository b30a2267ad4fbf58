//! What checking rights costs: the same publishes and deliveries by clients that may do everything
//! because nothing is asked of them, and by clients with a token and a role.
//!
//! The role has several rules, so that a decision is one: the last that matches counts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::live;
use super::load::{Bound, Window};
use super::publish::publisher;
use super::report::Counts;
use super::run::{Meter, Run};
use super::systems::{Contender, Store, Who};
use crate::benches::size_name;
use crate::benches::store::Result;

/// The socket of a server by which its own user makes tokens, in the server's folder.
pub(super) const SOCKET: &str = "socket";

/// What the token's bearer may do.
const RULES: [&str; 4] = [
    "allow read on reports.>",
    "deny publish on orders.secret",
    "allow publish,subscribe on >",
    "deny publish on audit.>",
];

/// Servers that ask for a token, and the token.
static TOKENS: Mutex<BTreeMap<SocketAddr, String>> = Mutex::new(BTreeMap::new());

/// The token that a server asks for.
pub(super) fn token_for(address: SocketAddr) -> Option<String> {
    TOKENS.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
}

/// Makes a role and a token at a server; from now on, who connects to its address shows the token.
pub(super) fn make_token(program: &Path, folder: &Path, address: SocketAddr) -> Result<()> {
    let server = format!("unix:{}", folder.join(SOCKET).display());
    let run = |words: &[&str]| -> Result<String> {
        let output = Command::new(program).args(words).args(["--server", &server]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    run(&[&["auth", "role", "bench"][..], &RULES].concat())?;
    let token = run(&["token", "create", "bench", "--role", "bench"])?;
    TOKENS.lock().unwrap_or_else(PoisonError::into_inner).insert(address, token);
    Ok(())
}

/// Publishing and delivering, without rights and with them.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    let open = Contender::new(Who::Gapless, Store::Live);
    let both = || vec![open, Contender { rights: true, ..open }];
    let (rounds, time, size) = (run.plan.rounds, run.plan.time, live::MESSAGE_BYTES);
    let publish = format!("rights: publish without waiting, {}", size_name(size));
    run.alternate((&publish, rounds), both(), |run, contender| {
        let stage = run.stage(contender)?;
        let mut publisher = publisher(stage.server.address(), contender, size, "bench")?;
        let window = Window::wide(&publisher.ring);
        let meter = Meter::start(&stage.server)?;
        let sent = publisher.flood(window, Bound::time(time))?;
        let measured = meter.rate(&stage.server, sent)?;
        run.add("rights", (&publish, Counts::PerSecond), contender, measured);
        Ok(())
    })?;
    let deliver = format!("rights: live 1 → 1, {}", size_name(size));
    run.alternate((&deliver, rounds), both(), |run, contender| {
        let stage = run.stage(contender)?;
        let measured = live::deliver(&stage, contender, (1, 1, size), time)?;
        run.add("rights", (&deliver, Counts::PerSecond), contender, measured);
        Ok(())
    })
}
