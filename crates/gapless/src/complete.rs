//! Words that only a server knows, for shells: topics, groups; and contexts, which a file knows.
//!
//! A shell waits for them, so that there is little time, and any failure gives no words. Only the
//! environment, contexts and `--server`, `--context`, `--token-file` and TLS flags in the words typed so
//! far say which server is asked.

use std::ffi::OsStr;
use std::time::Duration;

use clap::Parser;
use clap_complete::CompletionCandidate;
use gapless_client::Client;
use gapless_core::Pattern;
use tokio::time::timeout;

use crate::cmd::{Cli, Global};
use crate::context::{self, Contexts};
use crate::remote::connect;

/// How long a shell may wait.
const TIME: Duration = Duration::from_millis(800);
/// Words at most: more cannot be read.
const WORDS_MAX: u32 = 500;
/// Flags that say which server is asked, each with a value.
const FLAGS: [&str; 6] =
    ["--server", "--context", "--token-file", "--tls-ca", "--tls-cert", "--tls-key"];

/// Topics that begin with this.
pub(crate) fn topics(current: &OsStr) -> Vec<CompletionCandidate> {
    words(current, async |client| {
        let all = Pattern::parse(">").ok()?;
        let page = client.topics(&all, None, WORDS_MAX).await.ok()?;
        Some(page.topics.into_iter().map(|info| info.name.to_string()).collect())
    })
}

/// Groups that begin with this.
pub(crate) fn groups(current: &OsStr) -> Vec<CompletionCandidate> {
    words(current, async |client| {
        let all = Pattern::parse(">").ok()?;
        let page = client.groups(&all, None, WORDS_MAX).await.ok()?;
        Some(page.groups.into_iter().map(|info| info.name.to_string()).collect())
    })
}

/// Contexts that begin with this.
pub(crate) fn contexts(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = Contexts::load().map(|all| all.contexts.into_keys().collect()).unwrap_or_default();
    matching(current, names)
}

fn words(
    current: &OsStr,
    ask: impl AsyncFnOnce(&Client) -> Option<Vec<String>>,
) -> Vec<CompletionCandidate> {
    let asked = || {
        let global = global()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async {
            let asked = async {
                let client = connect(&global).await.ok()?;
                ask(&client).await
            };
            timeout(TIME, asked).await.ok().flatten()
        })
    };
    matching(current, asked().unwrap_or_default())
}

fn matching(current: &OsStr, words: Vec<String>) -> Vec<CompletionCandidate> {
    let begin = current.to_string_lossy();
    let fits = |word: &String| word.starts_with(begin.as_ref());
    words.into_iter().filter(fits).map(CompletionCandidate::new).collect()
}

/// What the words typed so far say about the server.
fn global() -> Option<Global> {
    let typed: Vec<String> = std::env::args().collect();
    let mut words = vec!["gapless".to_owned(), "stats".to_owned(), "--wait=0s".to_owned()];
    for (at, word) in typed.iter().enumerate() {
        let flag = word.split('=').next().unwrap_or_default();
        if FLAGS.contains(&flag) {
            words.push(word.clone());
            if !word.contains('=') {
                words.push(typed.get(at + 1)?.clone());
            }
        } else if word == "--tls" {
            words.push(word.clone());
        }
    }
    let mut global = Cli::try_parse_from(words).ok()?.global;
    context::apply(&mut global, context::Source::Flag).ok()?;
    Some(global)
}
