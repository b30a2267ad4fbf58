//! Places that a store is copied from and to: a running server, a data folder, a store on object
//! storage, a backup.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gapless_engine::{Backup, BackupError, Server, ServerAccess, Store, StoreError, StoreOptions};
use gapless_journal::fs::DiskFs;
use gapless_journal::layout::Folder;
use gapless_journal::log::LogError;
use gapless_journal::{CopyError, OpenError, Snapshot, SnapshotError, Sum};

use crate::cmd::Global;
use crate::exit::{Exit, Failure};
use crate::remote;

/// Where a server's HTTP API is by default.
pub(crate) const HTTP_DEFAULT: &str = "http://127.0.0.1:4280";

/// A place, as its words say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A running server, by its HTTP API.
    Server(String),
    /// A folder.
    Folder(PathBuf),
    /// Object storage.
    Url(String),
}

impl Place {
    pub(crate) fn parse(words: &str) -> Self {
        match words {
            _ if words.starts_with("http://") || words.starts_with("https://") => {
                Self::Server(words.to_owned())
            }
            _ if words.contains("://") || words == "memory:" => Self::Url(words.to_owned()),
            _ => Self::Folder(PathBuf::from(words)),
        }
    }

    /// The same as a URL of object storage.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        match self {
            Self::Url(url) => Ok(url.clone()),
            Self::Folder(path) => file_url(path),
            Self::Server(url) => {
                Err(Failure::words(format!("{url} is a server; name a folder or s3://…")))
            }
        }
    }

    /// Whether a folder holds a backup or an object store, and not a data folder.
    pub(crate) fn has_objects(&self) -> bool {
        match self {
            Self::Folder(path) => path.join("gapless.json").exists(),
            Self::Url(_) => true,
            Self::Server(_) => false,
        }
    }
}

/// What is shown of a place.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(url) | Self::Url(url) => f.write_str(url),
            Self::Folder(path) => path.display().fmt(f),
        }
    }
}

fn file_url(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path)?;
    let text = absolute.to_str().ok_or_else(|| {
        Failure::words(format!("{} is not Unicode, which a URL must be", path.display()))
    })?;
    // The few characters that a URL gives a meaning.
    let escaped = text.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    Ok(format!("file://{escaped}"))
}

/// Something that can be copied.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) snapshot: Snapshot,
    server: Option<Server>,
}

impl Source {
    /// Opens what is at a place, to be copied.
    pub(crate) fn open(place: &Place, global: &Global) -> Result<Self, Failure> {
        match place {
            Place::Server(url) => {
                let (server, snapshot) =
                    Server::snapshot(url, &access(global)?).map_err(backup_failure)?;
                Ok(Self { snapshot, server: Some(server) })
            }
            Place::Folder(path) if !place.has_objects() => {
                let folder = Folder::new(Arc::new(DiskFs), path);
                let snapshot = folder.snapshot().map_err(|error| of_folder(path, error))?;
                Ok(Self { snapshot, server: None })
            }
            _ => {
                let store = open_store(place, false)?;
                let snapshot = store.snapshot(0).map_err(snapshot_failure)?;
                Ok(Self { snapshot, server: None })
            }
        }
    }

    /// Bytes of all that is copied.
    pub(crate) fn bytes(&self) -> Result<u64, Failure> {
        let frames = self.snapshot.frames().iter().map(|(_, bytes)| bytes.len() as u64);
        let mut total: u64 = frames.sum();
        for name in self.snapshot.names() {
            total += self.snapshot.blobs().open(&name).map_err(Failure::failed)?.len();
        }
        Ok(total)
    }

    /// The sum of a blob.
    pub(crate) fn sum_of(&self, name: &str) -> Result<Sum, BackupError> {
        match &self.server {
            Some(server) => server.sum_of(name),
            None => Ok(gapless_journal::sum_of(&*self.snapshot.blobs().open(name)?)?),
        }
    }
}

/// The store on object storage at a place.
pub(crate) fn open_store(place: &Place, create: bool) -> Result<Store, Failure> {
    let options = StoreOptions { create, ..StoreOptions::default() };
    Store::open(&place.url()?, options).map_err(store_failure)
}

/// Writes a state to an empty place.
pub(crate) fn write(
    snapshot: &Snapshot,
    to: &Place,
    sum_of: &dyn Fn(&str) -> Option<Sum>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let done = match to {
        Place::Server(_) => return Err(to.url().err().unwrap_or_else(|| Failure::words("no"))),
        Place::Folder(path) => {
            let folder = Folder::new(Arc::new(DiskFs), path);
            snapshot.write_to_folder(&folder, sum_of, progress)
        }
        Place::Url(_) => {
            let store = open_store(to, true)?;
            let log = store.log(0, &snapshot.marks()).shared();
            snapshot.write_to(&store.blobs(0), &*log, sum_of, progress)
        }
    };
    done.map_err(|error| copy_failure(error, to))
}

/// The backup at a place.
pub(crate) fn backup_at(place: &Place) -> Result<Backup, Failure> {
    Backup::at(&place.url()?).map_err(store_failure)
}

fn access(global: &Global) -> Result<ServerAccess, Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path)
            .map_err(|error| Failure::words(format!("cannot read {}: {error}", path.display())))
    };
    let identity = match (&global.tls_cert, &global.tls_key) {
        (Some(cert), Some(key)) => {
            let mut pem = read(cert)?;
            pem.push(b'\n');
            pem.extend(read(key)?);
            Some(pem)
        }
        _ => None,
    };
    let authorities = global.tls_ca.as_ref().map(read).transpose()?;
    Ok(ServerAccess { token: remote::token(global)?, authorities, identity })
}

fn of_folder(path: &Path, error: SnapshotError) -> Failure {
    let at = path.display();
    match error {
        SnapshotError::NoStore => Failure::not_found(format!("there is no store in {at}")),
        SnapshotError::Open(OpenError::Log(LogError::Locked { .. })) => {
            Failure::failed(format!("{at} is in use by a server"))
                .hint(format!("copy from the server: its HTTP address, as {HTTP_DEFAULT}"))
        }
        error => Failure::failed(format!("{at}: {error}")),
    }
}

fn snapshot_failure(error: SnapshotError) -> Failure {
    match error {
        SnapshotError::NoStore => Failure::not_found(error),
        error => Failure::failed(error),
    }
}

pub(crate) fn store_failure(error: StoreError) -> Failure {
    match error {
        StoreError::NoStore { .. } => Failure::not_found(error),
        StoreError::Url { .. } => Failure::words(error),
        error => Failure::failed(error),
    }
}

pub(crate) fn copy_failure(error: CopyError, to: &Place) -> Failure {
    match error {
        CopyError::NotEmpty { .. } => Failure::words(format!("{to} is not empty: {error}")),
        CopyError::Changed { .. } => Failure::new(Exit::Damage, error)
            .hint("what was copied is not a store; delete it, and use another backup"),
        error if error.is_missing() => Failure::failed(error)
            .hint("a server replaced it meanwhile; copy from the server: its HTTP address"),
        error => Failure::failed(error),
    }
}

pub(crate) fn backup_failure(error: BackupError) -> Failure {
    match error {
        BackupError::NoBackup { .. } => Failure::not_found(error),
        BackupError::Store(error) => store_failure(error),
        BackupError::IsStore { .. } | BackupError::Other { .. } => Failure::words(error),
        BackupError::Copy(error) if error.is_missing() => Failure::new(Exit::Damage, error),
        BackupError::Copy(CopyError::Changed { .. })
        | BackupError::Index { .. }
        | BackupError::Snapshot(_) => Failure::new(Exit::Damage, error),
        error => Failure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_by_its_words() {
        assert_eq!(Place::parse("http://a:1"), Place::Server("http://a:1".to_owned()));
        assert_eq!(Place::parse("s3://b/c"), Place::Url("s3://b/c".to_owned()));
        assert_eq!(Place::parse("x/y"), Place::Folder(PathBuf::from("x/y")));
        let url = Place::parse("/a b/50%#?").url().expect("a URL");
        assert_eq!(url, "file:///a b/50%25%23%3F");
    }
}
