//! Chores of the workspace that are too fussy for a shell script.
//!
//! `cargo run -p xtask -- tidy` checks the layering and the house rules, prints one line per
//! finding (`path:line: rule: what is wrong`) and ends with 1 if there was any.
//!
//! Not here: anything a compiler, clippy or rustfmt already says. This crate depends on no
//! crate of the workspace, so that it still runs when they do not build.

mod docs;
mod finding;
mod layering;
mod rules;
mod source;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => run_tidy(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy");
            ExitCode::from(2)
        }
    }
}

fn run_tidy() -> ExitCode {
    match tidy::check_workspace() {
        Ok(checked) if checked.findings.is_empty() => {
            println!("tidy: {} crates and {} files, nothing found", checked.crates, checked.files);
            ExitCode::SUCCESS
        }
        Ok(checked) => {
            for finding in &checked.findings {
                eprintln!("{finding}");
            }
            eprintln!("tidy: {} found in {} files", checked.findings.len(), checked.files);
            ExitCode::FAILURE
        }
        Err(trouble) => {
            eprintln!("tidy: could not check: {trouble}");
            ExitCode::FAILURE
        }
    }
}
