//! A broker to measure: opened in a folder of its own, with topics and messages to fill it.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use gapless_bench::buffer::PageBuffer;
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::{Durability, Message, PublishOptions, TopicName, TopicSettings};

use super::window::Window;

/// What a bench comes to. The errors are those of threads too.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Publishes in flight where nothing else is said.
pub(crate) const IN_FLIGHT: usize = 1000;

/// A folder for one case, removed with all it holds when the case ends: so no case finds
/// the segments of another, and the disk holds one case at a time.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A fresh folder inside `dir`.
    pub(crate) fn fresh(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // There is no caller left to report it to; the scratch folder goes as a whole in the end.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The defaults, with log files of the size they have after a while: what is measured is
/// the broker at work, not its first second.
pub(crate) fn options(folder: &Path) -> BrokerOptions {
    let mut options = BrokerOptions::new(folder);
    options.log.first_file_bytes = options.log.file_bytes_max;
    options
}

/// Opens a broker with [`options`].
pub(crate) fn open(folder: &Path) -> Result<Broker> {
    Ok(Broker::open(options(folder))?)
}

/// Makes `count` topics of this durability, `<prefix>.0` and on.
pub(crate) fn topics(
    broker: &Broker,
    prefix: &str,
    count: usize,
    durability: Durability,
) -> Result<Vec<TopicName>> {
    let names = (0..count).map(|number| TopicName::parse(&format!("{prefix}.{number}")));
    let names = names.collect::<std::result::Result<Vec<_>, _>>()?;
    let settings = TopicSettings { durability: Some(durability), ..TopicSettings::default() };
    broker.create_topics(&names, settings)?;
    Ok(names)
}

/// Makes one topic of this durability.
pub(crate) fn topic(broker: &Broker, durability: Durability) -> Result<TopicName> {
    let mut made = topics(broker, "bench", 1, durability)?;
    made.pop().ok_or_else(|| "no topic was made".into())
}

/// A message with a body of so many bytes that cannot be squeezed.
pub(crate) fn message(bytes: usize) -> Message {
    Message::new(Bytes::from(PageBuffer::noise(bytes).as_slice().to_vec()))
}

/// What a store is filled with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// Bytes of a message's body.
    pub(crate) message_bytes: usize,
    /// Messages of a batch.
    pub(crate) batch: usize,
    /// Bytes of all bodies.
    pub(crate) bytes: u64,
}

impl Fill {
    /// How many messages that are: whole batches.
    pub(crate) fn messages(&self) -> u64 {
        let batches = self.bytes / (self.message_bytes * self.batch) as u64;
        batches.max(1) * self.batch as u64
    }

    /// Publishes them, one batch to each topic in turn.
    pub(crate) fn publish(&self, broker: &Broker, topics: &[TopicName]) -> Result<()> {
        let batch = vec![message(self.message_bytes); self.batch];
        let options = PublishOptions::default();
        let mut window = Window::new(broker, (IN_FLIGHT / self.batch).max(2));
        let mut topics = topics.iter().cycle();
        for _ in 0..self.messages() / self.batch as u64 {
            let topic = topics.next().ok_or("there is no topic to fill")?;
            window.publish(|broker| broker.publish_batch(topic, &batch, &options))?;
        }
        window.drain()
    }
}
