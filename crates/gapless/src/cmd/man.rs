//! `gapless man`: the help texts as manual pages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_mangen::Man;
use serde_json::json;

use super::Cli;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless man | man -l -                        the page of gapless itself
  gapless man ~/.local/share/man/man1           all pages: man gapless-pub, man gapless-topic-create
  sudo gapless man /usr/local/share/man/man1";

/// Write manual pages
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManOptions {
    /// The folder for all pages, created if it is missing [default: the first page, to stdout]
    dir: Option<PathBuf>,
}

pub(crate) fn run(options: &ManOptions, out: &mut Output) -> Done {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(dir) = &options.dir else {
        let (_, page) = page(&root, "gapless")?;
        out.bytes(&page)?;
        return Ok(Exit::Ok);
    };
    let mut pages = Vec::new();
    all(&root, "gapless", &mut pages)?;
    write(dir, &pages)
        .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", dir.display())))?;
    let value = json!({ "dir": dir.display().to_string(), "pages": pages.len() });
    out.result(&value, format!("{} pages in {}", pages.len(), dir.display()))?;
    Ok(Exit::Ok)
}

fn write(dir: &Path, pages: &[(String, Vec<u8>)]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    pages.iter().try_for_each(|(name, page)| fs::write(dir.join(name), page))
}

fn all(
    command: &clap::Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    pages.push(page(command, name)?);
    for below in command.get_subcommands().filter(|each| each.get_name() != "help") {
        all(below, &format!("{name}-{}", below.get_name()), pages)?;
    }
    Ok(())
}

/// The file name of a page, and the page.
fn page(command: &clap::Command, name: &str) -> Result<(String, Vec<u8>), Failure> {
    let mut shown = command.clone().version(env!("GAPLESS_VERSION"));
    if name != "gapless" {
        // What every command understands is described once, in gapless(1).
        shown = shown.mut_args(|arg| {
            let everywhere = arg.get_help_heading() == Some("Everywhere");
            if everywhere { arg.hide(true) } else { arg }
        });
    }
    let shown = shown.display_name(name.to_owned()).bin_name(name.replace('-', " "));
    let mut page = Vec::new();
    let source = concat!("gapless ", env!("GAPLESS_VERSION"));
    Man::new(shown).title(name).source(source).manual("gapless").render(&mut page)?;
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\n", ".SH EXAMPLES\n");
    let mut page = page.into_bytes();
    if name != "gapless" {
        page.extend_from_slice(
            b".SH \"SEE ALSO\"\n\\fBgapless\\fR(1), which has the flags of all commands\n",
        );
    }
    Ok((format!("{name}.1"), page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        let mut pages = Vec::new();
        all(&root, "gapless", &mut pages).unwrap();
        let find = |name: &str| {
            let page = pages.iter().find(|(file, _)| file == name);
            String::from_utf8(page.expect("the page is there").1.clone()).unwrap()
        };
        let publish = find("gapless-pub.1");
        assert!(
            publish.contains("orders.created") && publish.contains(".TH gapless-pub 1"),
            "{publish}"
        );
        assert!(!publish.contains("token\\-file"), "{publish}");
        assert!(find("gapless.1").contains("token\\-file"));
        assert!(find("gapless-topic-create.1").contains("retention"));
    }
}
