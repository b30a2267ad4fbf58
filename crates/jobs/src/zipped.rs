//! The output files of a job as one archive.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::run::RunLimits;

/// Deepest folder that is looked into.
const DEPTH_MAX: usize = 16;

/// Files below the folder that were not there before, or are different now; `None` if there is
/// none. Links are passed over: what they point to is not the job's.
pub(crate) async fn changed_files(
    folder: &Path,
    inputs: &BTreeMap<String, Vec<u8>>,
    limits: &RunLimits,
) -> Result<Option<Vec<u8>>, String> {
    let is_empty = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty {
        return Ok(None);
    }
    let (folder, limits) = (folder.to_owned(), *limits);
    // Only what is compared is kept: a digest would not be smaller than most inputs.
    let inputs = inputs.clone();
    let zip = move || archive(&folder, &inputs, &limits);
    tokio::task::spawn_blocking(zip).await.map_err(|error| error.to_string())?
}

fn archive(
    folder: &Path,
    inputs: &BTreeMap<String, Vec<u8>>,
    limits: &RunLimits,
) -> Result<Option<Vec<u8>>, String> {
    let mut files = Vec::new();
    collect(folder, Path::new(""), 0, limits, &mut files)?;
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let (mut count, mut bytes) = (0, 0);
    for name in files {
        let text = name.to_string_lossy().replace('\\', "_");
        let mut content = Vec::new();
        let room = limits.output_bytes_max.saturating_sub(bytes) + 1;
        let open = std::fs::File::open(folder.join(&name)).map_err(|error| error.to_string())?;
        open.take(room).read_to_end(&mut content).map_err(|error| error.to_string())?;
        if inputs.get(&text).is_some_and(|before| *before == content) {
            continue;
        }
        bytes += content.len() as u64;
        count += 1;
        if bytes > limits.output_bytes_max {
            return Err(format!("its output files have over {} bytes", limits.output_bytes_max));
        }
        zip.start_file(text, SimpleFileOptions::default()).map_err(|error| error.to_string())?;
        zip.write_all(&content).map_err(|error| error.to_string())?;
    }
    let zipped = zip.finish().map_err(|error| error.to_string())?;
    Ok((count > 0).then(|| zipped.into_inner()))
}

fn collect(
    folder: &Path,
    below: &Path,
    depth: usize,
    limits: &RunLimits,
    files: &mut Vec<PathBuf>,
) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("its output folders are more than {DEPTH_MAX} deep"));
    }
    let entries = std::fs::read_dir(folder.join(below)).map_err(|error| error.to_string())?;
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(|error| error.to_string())?;
        let name = below.join(entry.file_name());
        if kind.is_dir() {
            collect(folder, &name, depth + 1, limits, files)?;
        } else if kind.is_file() {
            if files.len() >= limits.output_files_max {
                return Err(format!("it left over {} files", limits.output_files_max));
            }
            files.push(name);
        }
    }
    Ok(())
}
