//! Input files of a job, from its request into its folder.
//!
//! An archive comes from a client and is not trusted: names that lead out of the folder, links,
//! names that come twice, too many files, too many bytes and bytes out of nothing are refused,
//! and nothing is run.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Component, Path};

use zip::ZipArchive;

use crate::run::RunLimits;
use crate::wire::{JobRequest, check_file_name, decode};

/// An archive may hold this many times its own size, beside [`RATIO_FREE_BYTES`].
const RATIO_MAX: u64 = 200;
/// So much may come out of any archive.
const RATIO_FREE_BYTES: u64 = 1024 * 1024;
/// Deepest folder in an archive.
const DEPTH_MAX: usize = 16;

/// The input files of a job by name, as they are written into its folder.
pub(crate) fn inputs(
    request: &JobRequest,
    limits: &RunLimits,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut inputs = BTreeMap::new();
    let mut bytes = 0;
    for (name, content) in &request.files {
        check_file_name(name).map_err(|error| error.to_string())?;
        let content = decode(content).map_err(|error| error.to_string())?;
        bytes += content.len() as u64;
        if bytes > limits.input_bytes_max {
            return Err(too_large(limits));
        }
        inputs.insert(name.clone(), content);
    }
    if let Some(archive) = &request.archive {
        let archive = decode(archive).map_err(|error| error.to_string())?;
        unpack(&archive, bytes, limits, &mut inputs)?;
    }
    Ok(inputs)
}

fn too_large(limits: &RunLimits) -> String {
    format!("the input files have more than {} bytes", limits.input_bytes_max)
}

fn unpack(
    archive: &[u8],
    mut bytes: u64,
    limits: &RunLimits,
    inputs: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(), String> {
    let broken = |error: zip::result::ZipError| format!("the input archive is broken: {error}");
    let from_archive = (archive.len() as u64).saturating_mul(RATIO_MAX) + RATIO_FREE_BYTES;
    let mut unpacked = 0;
    let mut zip = ZipArchive::new(Cursor::new(archive)).map_err(broken)?;
    if zip.len() > limits.input_files_max {
        return Err(format!("the input archive has over {} files", limits.input_files_max));
    }
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).map_err(broken)?;
        let name = file.name().map_err(broken)?.into_owned();
        if file.is_dir() {
            continue;
        }
        if file.is_symlink() || !is_inside(&name) {
            return Err(format!("the input archive has a link or wrong name: {name:?}"));
        }
        // What an entry says of its size is not believed.
        let room = (limits.input_bytes_max - bytes).min(from_archive - unpacked);
        let mut content = Vec::new();
        let read = file.by_ref().take(room + 1).read_to_end(&mut content);
        read.map_err(|error| format!("the input archive is broken: {error}"))?;
        if content.len() as u64 > room {
            return Err(match bytes + room == limits.input_bytes_max {
                true => too_large(limits),
                false => format!("the input archive holds over {RATIO_MAX} times its size"),
            });
        }
        bytes += content.len() as u64;
        unpacked += content.len() as u64;
        if inputs.insert(name.clone(), content).is_some() {
            return Err(format!("two input files are called {name:?}"));
        }
    }
    Ok(())
}

/// Whether a name of an archive stays in the folder.
fn is_inside(name: &str) -> bool {
    let path = Path::new(name);
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let depth = path.components().count();
    let wrong =
        name.contains(['\\', '\0']) || name.split('/').any(|part| part == "." || part == "..");
    !wrong && (1..=DEPTH_MAX).contains(&depth) && path.components().all(plain)
}

/// Writes input files into a job's new folder, which has no links yet.
pub(crate) async fn write(
    folder: &Path,
    inputs: &BTreeMap<String, Vec<u8>>,
) -> std::io::Result<()> {
    for (name, content) in inputs {
        let path = folder.join(name);
        if let Some(above) = path.parent().filter(|above| *above != folder) {
            tokio::fs::create_dir_all(above).await?;
        }
        tokio::fs::write(path, content).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn zipped(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in files {
            zip.start_file(*name, SimpleFileOptions::default()).expect("a file");
            zip.write_all(content).expect("its content");
        }
        zip.finish().expect("an archive").into_inner()
    }

    fn unpacked(archive: &[u8], limits: RunLimits) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let archive = Some(crate::wire::encode(archive));
        inputs(&JobRequest { archive, ..JobRequest::default() }, &limits)
    }

    #[test]
    fn e7_an_archive_is_unpacked_with_its_folders() {
        let archive = zipped(&[("a.txt", b"1"), ("sub/b.txt", b"2")]);
        let files = unpacked(&archive, RunLimits::default()).expect("it is fine");
        assert_eq!(files["sub/b.txt"], b"2");
        assert_eq!(files.len(), 2);
    }

    #[test]
    fn e7_names_that_lead_out_and_links_are_refused() {
        for name in ["../a", "/etc/a", "a/../../b", "a\\..\\b", "./a", "a//../b", "C:\\a"] {
            let archive = zipped(&[(name, b"x")]);
            assert!(unpacked(&archive, RunLimits::default()).is_err(), "{name}");
        }
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).expect("a link");
        let archive = zip.finish().expect("an archive").into_inner();
        let why = unpacked(&archive, RunLimits::default()).expect_err("a link");
        assert!(why.contains("link"), "{why}");
    }

    #[test]
    fn e7_bombs_and_masses_of_files_are_refused() {
        let limits = RunLimits::default();
        let zeros = vec![0; 14 * 1024 * 1024];
        let why = unpacked(&zipped(&[("z", &zeros)]), limits).expect_err("a bomb");
        assert!(why.contains("times its size"), "{why}");
        let small = RunLimits { input_bytes_max: 1000, ..limits };
        let why = unpacked(&zipped(&[("a", &[1; 600]), ("b", &[2; 600])]), small);
        assert!(why.expect_err("too large").contains("1000 bytes"));
        let names: Vec<String> = (0..=limits.input_files_max).map(|at| at.to_string()).collect();
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b""[..])).collect();
        assert!(unpacked(&zipped(&files), limits).expect_err("too many").contains("files"));
        assert!(unpacked(b"no archive", limits).is_err());
    }
}
