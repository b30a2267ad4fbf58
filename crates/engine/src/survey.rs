//! Looks at a store without changing it: for `gapless doctor`.
//!
//! Every object of the log that is needed is read and its checksum compared; of blobs it is looked
//! whether those that the manifest names are there, with their sizes.
//!
//! Not here: reading segments, which a running server does anyway; repairs.

use gapless_journal::blobs::Blobs;
use gapless_journal::{FrameMarks, Lsn, Manifest, OpenError, Secret};

use crate::log::last_run;
use crate::object::{self, Fault};
use crate::store::Store;

/// Objects that are read at the same time.
const READ_AT_ONCE: usize = 32;

/// What a look at a journal found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Whether there is a store at all.
    pub exists: bool,
    /// The number of the newest manifest.
    pub manifest: u64,
    /// The term of the newest object of the log.
    pub term: u64,
    /// How many segments there are.
    pub segments: u64,
    /// Bytes of their data.
    pub segment_bytes: u64,
    /// Objects of the log, needed or not.
    pub log_objects: u64,
    /// Bytes of those that are needed.
    pub log_bytes: u64,
    /// The number of the frame after the last one.
    pub log_next: Lsn,
    /// What is wrong.
    pub damage: Vec<String>,
}

impl Store {
    /// Looks at a journal.
    ///
    /// # Errors
    /// When the store does not answer, or the manifest cannot be read.
    pub fn survey(&self, journal: u16) -> Result<Survey, OpenError> {
        let blobs = self.blobs(journal);
        let mut survey = Survey::default();
        let Some(manifest) = Manifest::newest(&blobs)? else { return Ok(survey) };
        (survey.exists, survey.manifest) = (true, manifest.number);
        self.survey_blobs(&blobs, &manifest, &mut survey)?;
        self.survey_log(journal, &manifest, &mut survey)?;
        Ok(survey)
    }

    fn survey_blobs(
        &self,
        blobs: &dyn Blobs,
        manifest: &Manifest,
        survey: &mut Survey,
    ) -> Result<(), OpenError> {
        let names = blobs.list("")?;
        let mut missing = |name: String| {
            if names.binary_search(&name).is_err() {
                survey.damage.push(format!("{name} is missing; the manifest names it"));
            }
        };
        for segment in &manifest.segments {
            missing(segment.data_name());
            missing(segment.index_name());
        }
        missing(manifest.checkpoint.as_deref().map_or_else(|| manifest.name(), str::to_owned));
        survey.segments = manifest.segments.len() as u64;
        survey.segment_bytes = manifest.segments.iter().map(|segment| segment.bytes).sum();
        Ok(())
    }

    fn survey_log(
        &self,
        journal: u16,
        manifest: &Manifest,
        survey: &mut Survey,
    ) -> Result<(), OpenError> {
        let log = self.log(journal, &FrameMarks::secret(Secret::new(0)));
        let failed = log.failed("read");
        let numbers = log.remote.retry(|| log.numbers_after(None)).map_err(&failed)?;
        survey.log_objects = numbers.len() as u64;
        let run = last_run(&numbers);
        let mut end: Option<Lsn> = None;
        for part in run.chunks(READ_AT_ONCE) {
            let paths: Vec<_> = part.iter().map(|number| log.path(*number)).collect();
            let bodies = log.remote.get_all(&paths, READ_AT_ONCE).map_err(&failed)?;
            for (number, bytes) in part.iter().zip(bodies) {
                survey.log_bytes += bytes.len() as u64;
                let name = crate::log::name(*number);
                match object::decode(&bytes) {
                    Ok((head, _)) => {
                        let gap = end.filter(|end| head.frames > 0 && head.first != *end);
                        if let Some(end) = gap {
                            let first = head.first;
                            survey.damage.push(format!("{name} begins at {first}, not at {end}"));
                        }
                        if end.is_none() && head.first > manifest.replay_from {
                            let (first, needed) = (head.first, manifest.replay_from);
                            let why =
                                format!("the log begins at frame {first}, {needed} is needed");
                            survey.damage.push(why);
                        }
                        survey.term = head.mark.term;
                        let known = Some(head.end()).filter(|_| head.first != Lsn::NONE);
                        end = known.max(end);
                    }
                    Err(Fault::Damaged(why)) => survey.damage.push(format!("{name}: {why}")),
                    Err(Fault::Version(found)) => {
                        survey.damage.push(format!("{name} has format version {found}"));
                    }
                }
            }
        }
        survey.log_next = end.unwrap_or(manifest.replay_from);
        if survey.log_next <= manifest.log_end {
            let (ends, known) = (survey.log_next.before(), manifest.log_end);
            survey.damage.push(format!("the log ends at frame {ends}, the manifest knows {known}"));
        }
        Ok(())
    }
}
