//! `gapless store`: stores as a whole.

use clap::{Args, Subcommand};
use serde_json::json;

use super::Global;
use super::backup::Copying;
use crate::copying::{self, Place, Source};
use crate::exit::{Done, Exit};
use crate::output::{Output, human_bytes};

const EXAMPLES: &str = "\
Examples:
  gapless store copy gapless-data s3://bucket/prefix      files to a bucket, the server stopped
  gapless store copy http://127.0.0.1:4280 s3://bucket/prefix    the same while it runs";

/// Copy a store from files to object storage, or back
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StoreOptions {
    #[command(subcommand)]
    command: StoreCommand,
}

const COPY_EXAMPLES: &str = "\
Examples:
  gapless store copy gapless-data s3://bucket/prefix      files to a bucket
  gapless store copy s3://bucket/prefix gapless-data      and back
  gapless store copy http://10.0.0.3:4280 copy            of a server that runs

A folder is a data folder, unless it is written as file:///folder: that is object storage. The
target must be empty. A copy of a server that runs holds all that was acknowledged before it
began; to move a store for good, stop the server first, so that nothing comes after.";

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Copy a store to an empty place
    #[command(after_help = COPY_EXAMPLES)]
    Copy {
        /// A data folder that is not in use, a store on object storage, or a server's HTTP address
        from: String,
        /// An empty data folder, s3://bucket/prefix or file:///folder
        to: String,
    },
}

pub(crate) fn run(options: &StoreOptions, global: &Global, out: &mut Output) -> Done {
    let StoreCommand::Copy { from, to } = &options.command;
    let (from, to) = (Place::parse(from), Place::parse(to));
    let source = Source::open(&from, global)?;
    let total = source.bytes()?;
    let mut copying = Copying::new("copy", total, out);
    copying::write(&source.snapshot, &to, &|_| None, &mut |bytes| copying.add(bytes))?;
    drop(copying);
    if out.json {
        out.json_line(&json!({
            "done": "copied", "from": from.to_string(), "to": to.to_string(),
            "store": source.snapshot.epoch().to_string(), "bytes": total,
        }))?;
    } else {
        out.line(format_args!("copied {from} to {to}: {}", human_bytes(total)))?;
    }
    Ok(Exit::Ok)
}
