//! `docs/cli.md` is generated from the help texts and `docs/configuration.md` from the table of keys, so
//! that they cannot go out of date.
//!
//! `UPDATE_DOCS=1 cargo test -p gapless docs` writes both.

use std::path::Path;

use clap::CommandFactory;

use crate::cmd::Cli;
use crate::config::KEYS;
use crate::exit::Exit;

const HEAD: &str = "\
# The command line

Made from the help texts by a test; `UPDATE_DOCS=1 cargo test -p gapless docs` writes it.

`gapless` is pretty for people; `--json` is for programs: one value, or one line for each
message. Results go to stdout, everything said besides (notes, progress, logs, errors) to
stderr. Colours are for terminals only, and off when `NO_COLOR` is set.

With `--json` an error is one line on stderr: `{\"error\", \"hint\", \"code\", \"exit\"}`, where
`code` is the number in the protocol's list of errors, if the server gave one. A connection that is
lost, and tried again, is a line on stderr too: `{\"event\": \"offline\", \"why\"}`.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    page += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
    for exit in Exit::ALL {
        page += &format!("| {} | {} |\n", exit as u8, exit.meaning());
    }
    let mut root = Cli::command();
    root.build();
    section(&mut page, &mut root, "gapless");
    page
}

fn section(page: &mut String, command: &mut clap::Command, name: &str) {
    let mut shown = command.clone();
    let top = name == "gapless";
    if !top {
        // What every command understands is described once, at the top.
        shown = shown.mut_args(|arg| {
            let everywhere = arg.get_help_heading() == Some("Everywhere");
            if everywhere || arg.get_id() == "help" { arg.hide(true) } else { arg }
        });
    }
    let help = if top { shown.render_long_help() } else { shown.render_help() }.to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    *page += &format!("\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for below in command.get_subcommands_mut().filter(|each| each.get_name() != "help") {
        let name = format!("{name} {}", below.get_name());
        section(page, below, &name);
    }
}

const CONFIGURATION: &str = "\
# Configuration

Made from the table of keys by a test; `UPDATE_DOCS=1 cargo test -p gapless docs` writes it.

A server needs no configuration. A value comes from the first of these that has one:

1. a flag: `--set KEY=VALUE`, or a flag of its own such as `--data`;
2. the environment: `GAPLESS_` and the key in capitals with `_` for `.`, such as `GAPLESS_HTTP_LISTEN`;
3. the file `gapless.toml`, or the one named by `--config` or `GAPLESS_CONFIG`;
4. the default below.

A key that ends in `_ms` takes milliseconds or a time with its unit (`10s`, `2m`), one that ends in
`_bytes` takes bytes or a size (`64MiB`).

`gapless config` shows every value in force and where it came from; an unknown key is an error with a
suggestion. In the file, the word before the first dot is a table:

```toml
data = \"/var/lib/gapless\"

[http]
listen = \"127.0.0.1:4280\"
```
";

fn configuration() -> String {
    let mut page = CONFIGURATION.to_owned();
    let mut table = None;
    for key in KEYS {
        let of = key.name.split_once('.').map_or("", |(table, _)| table);
        if table.replace(of) != Some(of) {
            let title = if of.is_empty() { "At the top" } else { of };
            page += &format!("\n## {title}\n\n| key | default | meaning |\n|---|---|---|\n");
        }
        let default = if key.default.is_empty() { "empty" } else { &format!("`{}`", key.default) };
        page += &format!("| `{}` | {default} | {} |\n", key.name, key.help.replace('|', "\\|"));
    }
    page
}

/// Compares a page with what the code says, or writes it.
fn up_to_date(name: &str, page: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page).unwrap();
        return;
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == page,
        "docs/{name} is out of date; run: UPDATE_DOCS=1 cargo test -p gapless docs"
    );
}

#[test]
fn the_page_of_the_command_line_is_up_to_date() {
    up_to_date("cli.md", &page());
}

#[test]
fn the_page_of_the_configuration_is_up_to_date() {
    up_to_date("configuration.md", &configuration());
}
