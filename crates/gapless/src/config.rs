//! Configuration: defaults, then a file, then the environment, then flags.
//!
//! Every key is a row of one table, with its default and what it means; so `gapless config`
//! can show what is in force and where each value came from, and a key that does not exist
//! is an error with a suggestion. Values are kept as text and read by type where they are
//! used: the error for a bad one names the key, the value and where it was set.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::values;

/// A key: its name, its default, and what it means.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! keys {
    ($($name:literal = $default:literal, $help:literal;)+) => {
        /// All keys, in the order in which they are shown.
        pub(crate) const KEYS: &[Key] =
            &[$(Key { name: $name, default: $default, help: $help }),+];
    };
}

keys! {
    "data" = "gapless-data", "the data folder";
    "permissions" = "owner", "who may read what is created in the data folder, and use the Unix \
        socket: owner, group, or umask for what the process was started with";
    "insecure" = "false", "whether other machines may be let in without TLS and without asking who \
        they are: true or false";
    "native.listen" = "127.0.0.1:4281", "address of the native API; empty for none";
    "native.unix" = "auto", "Unix socket of the native API; auto is gapless.sock in the data \
        folder, empty for none";
    "native.connections_max" = "10000", "most connections at the same time";
    "native.subscriptions_max" = "10000", "most subscriptions of one connection";
    "native.frame_bytes_max" = "4194304", "largest frame in bytes, at most 4194304";
    "native.in_flight_bytes_max" = "16777216", "bytes of one connection that wait for an ack";
    "native.in_flight_total_bytes_max" = "268435456", "the same for all connections together";
    "native.hello_timeout_ms" = "5000", "how long a connection may take to say hello";
    "native.idle_timeout_ms" = "120000", "how long a connection may say nothing; 0 for ever";
    "native.drain_ms" = "5000", "how long connections get to finish at shutdown";
    "native.awake_us" = "0", "how long processors are kept from sleeping after each message, in \
        microseconds, at most 1000000: shorter ways there and back, for processor time";
    "http.listen" = "127.0.0.1:4280", "address of the HTTP API; empty for none";
    "http.connections_max" = "20000", "most connections at the same time";
    "http.streams_max" = "15000", "most open streams (SSE, WebSocket, long polls)";
    "http.body_bytes_max" = "16777216", "largest body of a request in bytes";
    "http.head_bytes_max" = "65536", "largest line and headers of a request in bytes";
    "http.head_timeout_ms" = "10000", "how long the line and headers of a request may take";
    "http.body_timeout_ms" = "60000", "how long the body of a request may take";
    "http.long_poll_ms" = "3000", "how long a long poll of a stream waits";
    "http.members_max" = "10000", "most group members that live between requests";
    "http.member_idle_ms" = "60000", "how long such a member lives without a request";
    "http.drain_ms" = "5000", "how long requests get to finish at shutdown";
    "http.metrics_topics_max" = "1000", "most topics, and most groups, that /metrics shows one \
        by one";
    "http.history_step_ms" = "10000", "how long a step of the page's charts takes, kept in memory whether \
        or not a page is open; there are 360, so 10000 is an hour and 240000 a day";
    "http.hosts" = "", "host names that clients may use, with commas between, beside IP addresses, \
        localhost and the name in http.listen; * for all";
    "http.cors_origins" = "", "origins that browsers may call from, with commas between; * for all";
    "journal.tail_bytes" = "67108864", "bytes of the newest messages kept in memory";
    "journal.seal_bytes" = "67108864", "bytes of log after which a segment is written, at least \
        1048576";
    "journal.compact_within_ms" = "600000", "how long a compacted topic may keep older messages of a \
        key when nothing else makes them go; 0 for ever";
    "journal.recovery_threads" = "2", "threads that read history";
    "store.url" = "", "where the store is, if not in the data folder: s3://bucket/prefix (keys and \
        region by the variables AWS_…), or file:///folder";
    "store.standby" = "false", "whether this server waits until no other serves the store, and takes \
        over then: true or false";
    "store.shared" = "false", "whether all nodes of the cluster serve the store together: any of them takes \
        any request, and one owns the store at a time: true or false";
    "store.wait_ms" = "10000", "how long a request at a node that shares its store waits for an owner, at \
        least 100";
    "store.journals" = "1", "how many journals a new store gets; fixed from then on";
    "store.beat_ms" = "1000", "how often the server that owns the store shows that it lives, and looks \
        whether another took over, at least 100";
    "store.takeover_ms" = "3000", "how long a standby sees no sign of the owner before it takes over, at \
        least twice store.beat_ms";
    "store.linger_ms" = "20", "least time between two writes to the store under load, at most 1000: more \
        messages share one";
    "store.cache_bytes" = "1073741824", "bytes of segments of such a store that are kept in the data \
        folder; 0 for none";
    "limits.topics_max" = "10000000", "most topics";
    "limits.subscriptions_max" = "1000000", "most subscriptions";
    "limits.message_bytes_max" = "4128768", "largest message in bytes";
    "limits.recovery_bytes_max" = "268435456", "bytes of history in memory for all recovering subscribers";
    "limits.volatile_bytes_max" = "536870912", "bytes that all volatile topics keep together";
    "limits.mailboxes_bytes_max" = "536870912", "bytes that wait for all subscribers of volatile \
        subjects together";
    "limits.cells_max" = "1000000", "most named cells";
    "limits.cells_bytes_max" = "268435456", "bytes of all named cells together";
    "limits.delayed_max" = "10000000", "most messages that wait for their time; each costs some 60 \
        bytes of memory";
    "limits.mailbox_bytes_max" = "8388608", "bytes that wait for a subscriber of volatile subjects";
    "limits.memory_bytes" = "auto", "memory for unfinished requests and unsent answers of all \
        connections together, in bytes; auto is a quarter of the machine's, or of the control group's";
    "limits.memory_wait_ms" = "10000", "how long a connection waits for that memory before it is \
        refused, and may hold some without getting on while it is short";
    "limits.write_timeout_ms" = "120000", "how long a client may take nothing of what is sent to it \
        before its connection is ended; it can resume";
    "auth.required" = "false", "whether clients must prove who they are; if not, one that proves \
        nothing may do everything: true or false";
    "auth.rules_file" = "", "file of roles and identities (TOML), which hold beside those of the store; \
        empty for none";
    "auth.jwt_keys" = "", "file of public keys (JWKS) whose signed tokens (JWT) are accepted; empty \
        for none";
    "auth.jwt_issuer" = "", "what `iss` of signed tokens must be; empty for any";
    "auth.jwt_audience" = "", "what `aud` of signed tokens must be or hold; empty for any";
    "audit.keep_bytes" = "0", "bytes of the audit ($events.audit.>) that are kept in the topic \
        $audit.log, the newest; 0 keeps none";
    "tls.cert" = "", "file of the server's certificate, and of those between it and its authority \
        (PEM); with it, TCP and HTTP are encrypted";
    "tls.key" = "", "file of its private key (PEM)";
    "tls.client_ca" = "", "file of authorities (PEM) that sign certificates of clients; empty asks for \
        none";
    "tls.client_crl" = "", "file of lists of revoked certificates of clients (PEM)";
    "tls.client_required" = "false", "whether a client without a certificate is refused: true or \
        false";
    "jobs.enabled" = "true", "whether jobs are led here, on the native API: true or false";
    "jobs.lease_ms" = "15000", "how long a worker may be silent about a job before another gets it, \
        at least 3000";
    "jobs.keep_results_ms" = "86400000", "how long an ended job and its result are kept";
    "jobs.routes" = "", "executables that other leaders lead, and who they are: \
        render=10.0.0.5:4281,train=10.0.0.6:4281; * is every executable";
    "jobs.routes_ca" = "", "file of authorities (PEM) that sign the certificates of those leaders; with \
        it they are reached by TLS";
    "jobs.routes_cert" = "", "file of the certificate (PEM) that this leader shows them";
    "jobs.routes_key" = "", "file of its private key (PEM)";
    "jobs.routes_token_file" = "", "file whose first line is the token that this leader shows them";
    "cluster.node" = "", "the name of this node in its cluster, unique there; empty for a server on its own";
    "cluster.listen" = "", "address at which other nodes of the cluster reach this one";
    "cluster.advertise" = "", "address at which they reach it if it is another one: behind a proxy, or \
        when cluster.listen is 0.0.0.0; port 0 is the port of cluster.listen";
    "cluster.join" = "", "addresses of other nodes, with commas between; one that is there is enough";
    "cluster.members" = "gossip", "how other nodes are found: gossip, or static for exactly those in \
        cluster.join";
    "cluster.id" = "gapless", "the id of the cluster; nodes of another one are refused";
    "cluster.secret_file" = "", "file whose first line is the secret that all nodes share, of at least 16 \
        bytes; the environment variable GAPLESS_CLUSTER_SECRET comes before it";
    "cluster.tls_cert" = "", "file of the certificate that this node shows to others (PEM); with it, links \
        are encrypted";
    "cluster.tls_key" = "", "file of its private key (PEM)";
    "cluster.tls_ca" = "", "file of the authorities that sign certificates of nodes, and of nothing else \
        (PEM)";
    "cluster.tls_name" = "gapless-cluster", "the name that the certificates of all nodes are for";
    "cluster.link_timeout_ms" = "1000", "how long a link to another node may be silent before it is down, \
        at least 100";
    "cluster.subscriber_timeout_ms" = "3000", "how long a subscriber may take until its delivery is \
        reported as a timeout";
    "cluster.suspended_ttl_ms" = "60000", "how long messages are held for a node or a named subscriber \
        that cannot be reached";
    "cluster.queue_messages_max" = "65536", "most messages held for one node, or one named subscriber";
    "cluster.queue_bytes_max" = "67108864", "bytes of these";
    "cluster.queues_bytes_max" = "268435456", "bytes held for all of them together";
    "cluster.window_bytes" = "4194304", "bytes sent to a node that it has not confirmed";
    "cluster.interest_max" = "1000000", "most patterns that one node follows";
    "cluster.nodes_max" = "256", "most nodes";
    "cluster.drain_ms" = "5000", "how long a node that stops waits until others have what it sent";
    "outbox.dsn" = "", "PostgreSQL database whose outbox is moved into topics; empty for none";
    "outbox.password_file" = "", "file whose first line is the password for it; empty for \
        PGPASSWORD";
    "outbox.ca_file" = "", "certificates (PEM) it is verified with; empty for the system's";
    "outbox.schema" = "gapless", "schema of the outbox";
    "outbox.name" = "relay", "name under which the offset is kept";
    "outbox.topic_prefix" = "", "what comes before the topic of a row";
    "outbox.create_topics" = "false", "whether topics that do not exist are created: true or false";
    "durability" = "flushed", "default durability: memory, written or flushed";
    "log.access" = "off", "which requests are lines of the log: off, http, native or all";
    "log.lines_per_s" = "20", "most lines of one kind in a second, on average over ten; what is beyond \
        that is counted and left out; 0 for any number";
    "log.access_lines_per_s" = "1000", "the same for lines about requests (log.access)";
    "log.slow_flush_ms" = "1000", "how long a flush (fsync) takes for the log to say so; 0 for never";
    "trace.endpoint" = "", "collector that spans of traced messages are sent to (OTLP over HTTP), as \
        http://127.0.0.1:4318; empty for none";
    "trace.ratio" = "0", "share of messages without a traceparent with which a trace begins, from 0 to 1; \
        a traceparent decides for itself";
    "trace.service" = "gapless", "the name of the service in traces";
}

/// Variables that stand for flags, not for keys.
const FLAGS: [&str; 12] = [
    "config",
    "server",
    "wait",
    "timeout",
    "log",
    "token",
    "token_file",
    "tls",
    "tls_ca",
    "client_cert",
    "client_key",
    "cluster_secret",
];

/// The key whose value may have a password in it.
pub(crate) const DSN: &str = "outbox.dsn";

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Environment(String),
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// Why the configuration cannot be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{from}: there is no key `{key}`{}", suggestion(.nearest))]
    UnknownKey { key: String, from: Source, nearest: Option<&'static str> },
    #[error("{key} = {value:?} ({from}) cannot be used: {why}")]
    BadValue { key: &'static str, value: String, from: Source, why: String },
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}:{line}: not valid TOML: {why}", .path.display())]
    Syntax { path: PathBuf, line: usize, why: String },
    #[error("the value of {key} ({from}) cannot be used: a key has one value, as in {key} = \"…\"")]
    NoText { key: String, from: Source },
    #[error("`{0}` is not a setting; write it as key=value")]
    NoPair(String),
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(
        || "; `gapless config` lists all keys".to_owned(),
        |name| format!("; did you mean `{name}`?"),
    )
}

/// Every value in force.
#[derive(Clone)]
pub(crate) struct Config {
    values: BTreeMap<&'static str, (String, Source)>,
}

/// The names only: a value may be a secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

impl Config {
    /// Puts the layers together.
    pub(crate) fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<Self, ConfigError> {
        let default = |key: &Key| (key.name, (key.default.to_owned(), Source::Default));
        let mut config = Self { values: KEYS.iter().map(default).collect() };
        if let Some(path) = file {
            config.add_file(path)?;
        }
        for (name, value) in environment {
            config.add_variable(name, value)?;
        }
        for flag in flags {
            let (key, value) =
                flag.split_once('=').ok_or_else(|| ConfigError::NoPair(name_in(flag)))?;
            config.set(key.trim(), value.trim().to_owned(), Source::Flag)?;
        }
        Ok(config)
    }

    /// Takes a variable that names a key. One that nearly does is an error; what is far from
    /// all keys may be another program's, which uses the prefix too.
    fn add_variable(&mut self, name: String, value: String) -> Result<(), ConfigError> {
        let Some(key) = name.strip_prefix("GAPLESS_").map(str::to_ascii_lowercase) else {
            return Ok(());
        };
        if let Some(known) = KEYS.iter().find(|each| variable(each) == key) {
            self.values.insert(known.name, (value, Source::Environment(name)));
            return Ok(());
        }
        let distance = |each: &&Key| strsim::damerau_levenshtein(&variable(each), &key);
        let near = KEYS.iter().min_by_key(distance).filter(|each| distance(each) <= 2);
        match near {
            Some(near) if !FLAGS.contains(&key.as_str()) => {
                let nearest = Some(near.name);
                Err(ConfigError::UnknownKey { key, from: Source::Environment(name), nearest })
            }
            _ => Ok(()),
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            ConfigError::Syntax { path: path.to_owned(), line, why: error.message().to_owned() }
        })?;
        self.add_table("", &table, path)
    }

    fn add_table(
        &mut self,
        above: &str,
        table: &toml::Table,
        path: &Path,
    ) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = format!("{above}{name}");
            match value {
                toml::Value::Table(inner) => self.add_table(&format!("{key}."), inner, path)?,
                toml::Value::String(text) => self.set(&key, text.clone(), file(path))?,
                toml::Value::Array(_) | toml::Value::Datetime(_) => {
                    find(&key, file(path))?;
                    return Err(ConfigError::NoText { key, from: file(path) });
                }
                other => self.set(&key, other.to_string(), file(path))?,
            }
        }
        Ok(())
    }

    pub(crate) fn set(
        &mut self,
        key: &str,
        value: String,
        from: Source,
    ) -> Result<(), ConfigError> {
        let known = find(key, from.clone())?;
        self.values.insert(known.name, (value, from));
        Ok(())
    }

    /// The key of this name.
    pub(crate) fn key(name: &str) -> Result<&'static Key, ConfigError> {
        find(name, Source::Flag)
    }

    /// The text of a key, and where it came from.
    pub(crate) fn text(&self, key: &'static str) -> &str {
        &self.values[key].0
    }

    pub(crate) fn source(&self, key: &'static str) -> &Source {
        &self.values[key].1
    }

    /// The number of a key.
    pub(crate) fn get<T: FromStr>(&self, key: &'static str) -> Result<T, ConfigError> {
        let text = &self.values[key].0;
        let number = text.parse().ok().or_else(|| with_unit(key, text)?.to_string().parse().ok());
        number.ok_or_else(|| self.bad(key, number_form(key)))
    }

    /// That the value of a key cannot be used, and why.
    pub(crate) fn bad(&self, key: &'static str, why: &str) -> ConfigError {
        let (mut value, from) = self.values[key].clone();
        if key == DSN {
            value = "…".to_owned();
        }
        ConfigError::BadValue { key, value, from, why: why.to_owned() }
    }
}

fn file(path: &Path) -> Source {
    Source::File(path.to_owned())
}

fn find(name: &str, from: Source) -> Result<&'static Key, ConfigError> {
    let known = KEYS.iter().find(|each| each.name == name);
    known.ok_or_else(|| {
        let key = name_in(name);
        let nearest = nearest(&key);
        ConfigError::UnknownKey { key, from, nearest }
    })
}

/// What may be a key at the beginning of a text. The rest may be a value that was meant to stand
/// behind a `=`, and a secret.
fn name_in(text: &str) -> String {
    let other = |each: char| !each.is_alphanumeric() && !"._-".contains(each);
    let end = text.find(other).unwrap_or(text.len());
    if end == text.len() { text.to_owned() } else { format!("{} …", &text[..end]) }
}

/// A key as the environment spells it, without the prefix.
fn variable(key: &Key) -> String {
    key.name.replace('.', "_")
}

/// The key that was most likely meant.
fn nearest(wrong: &str) -> Option<&'static str> {
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    let distance = |key: &Key| {
        strsim::damerau_levenshtein(key.name, wrong)
            .min(strsim::damerau_levenshtein(last(key.name), wrong))
    };
    let best = KEYS.iter().min_by_key(|key| distance(key))?;
    // Of a short word, little must be wrong.
    let far = (wrong.chars().count() / 3).clamp(1, 3);
    (distance(best) <= far).then_some(best.name)
}

/// The number that a duration or size stands for, in the unit of its key.
fn with_unit(key: &str, text: &str) -> Option<u64> {
    if key.ends_with("_ms") {
        return u64::try_from(values::duration(text).ok()?.as_millis()).ok();
    }
    key.ends_with("_bytes").then(|| values::size(text).ok())?
}

/// How a number of this key is written.
fn number_form(key: &str) -> &'static str {
    if key.ends_with("_ms") {
        "use a whole number of milliseconds, or a time as 10s"
    } else if key.ends_with("_bytes") {
        "use a whole number of bytes, or a size as 64MiB"
    } else {
        "use a whole number, without a unit"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_with(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn load(
        file: Option<&Path>,
        env: &[(&str, &str)],
        flags: &[&str],
    ) -> Result<Config, ConfigError> {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Config::load(file, env, &flags)
    }

    #[test]
    fn flags_win_over_environment_over_file_over_default() {
        let file = file_with("data = 'f'\n[native]\nlisten = 'f:1'\nconnections_max = 7\n");
        let env = [("GAPLESS_NATIVE_LISTEN", "e:1"), ("GAPLESS_DATA", "e"), ("GAPLESS_OTHER", "x")];
        let config = load(Some(file.path()), &env, &["data=flag"]).unwrap();
        assert_eq!(config.text("data"), "flag");
        assert_eq!(config.text("native.listen"), "e:1");
        assert_eq!(config.get::<u32>("native.connections_max").unwrap(), 7);
        assert_eq!(config.text("durability"), "flushed");
        assert_eq!(*config.source("data"), Source::Flag);
        assert!(matches!(config.source("native.connections_max"), Source::File(_)));
        assert_eq!(config.source("native.listen").to_string(), "environment GAPLESS_NATIVE_LISTEN");
        assert_eq!(*config.source("durability"), Source::Default);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_a_suggestion() {
        let file = file_with("[native]\nlisen = 'x'\n");
        let error = load(Some(file.path()), &[], &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean `native.listen`?"), "{error}");
        let error = load(None, &[], &["zebra=1"]).unwrap_err().to_string();
        assert!(error.contains("`gapless config` lists all keys"), "{error}");
    }

    #[test]
    fn a_variable_that_is_nearly_a_key_is_an_error() {
        let error = load(None, &[("GAPLESS_NATIV_LISTEN", "x")], &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean `native.listen`?"), "{error}");
        let others = [("GAPLESS_SERVER", "x"), ("GAPLESS_WAIT", "1s"), ("OTHER", "x")];
        load(None, &others, &[]).unwrap();
    }

    #[test]
    fn a_bad_value_names_key_value_and_source() {
        let config = load(None, &[("GAPLESS_NATIVE_DRAIN_MS", "soon")], &[]).unwrap();
        let error = config.get::<u64>("native.drain_ms").unwrap_err().to_string();
        assert!(error.contains("native.drain_ms"), "{error}");
        assert!(error.contains("soon") && error.contains("GAPLESS_NATIVE_DRAIN_MS"), "{error}");
    }

    #[test]
    fn rubbish_in_the_file_is_told() {
        let file = file_with("data = 'x'\n\n[native]\nlisten = nonsense\n");
        let error = load(Some(file.path()), &[], &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("{}:4: not valid TOML", file.path().display())), "{error}");
        let missing = Path::new("does-not-exist.toml");
        assert!(matches!(load(Some(missing), &[], &[]), Err(ConfigError::Read { .. })));
        assert!(matches!(load(None, &[], &["data"]), Err(ConfigError::NoPair(_))));
    }

    #[test]
    fn a_setting_that_is_spelt_wrong_is_reported_without_its_value() {
        let array = file_with("[outbox]\ndsn = ['postgres://a:geheim@h/d']\n");
        let table = file_with("[outbox.dsn]\npassword = 'geheim'\n");
        let errors = [
            load(None, &[], &["outbox.dsn postgres://a:geheim@h/d?x=y"]),
            load(None, &[], &["outbox.dsn:postgres://a:geheim@h/d"]),
            load(None, &[("GAPLESS_OUTBOX_DNS", "postgres://a:geheim@h/d")], &[]),
            load(Some(array.path()), &[], &[]),
            load(Some(table.path()), &[], &[]),
        ];
        for error in errors {
            let told = error.unwrap_err().to_string();
            assert!(told.contains("outbox") && !told.contains("geheim"), "{told}");
        }
        let config = load(None, &[], &["outbox.dsn=postgres://a:geheim@h/d"]).unwrap();
        assert!(!config.bad(DSN, "it cannot").to_string().contains("geheim"));
    }

    #[test]
    fn every_default_can_be_read_and_every_key_is_explained() {
        let config = load(None, &[], &[]).unwrap();
        for key in KEYS {
            assert!(!key.help.is_empty(), "{}", key.name);
            let number = key.name.ends_with("_max") || key.name.ends_with("_ms");
            if number {
                config.get::<u64>(key.name).unwrap();
            }
        }
    }

    #[test]
    fn times_and_sizes_may_have_units() {
        let flags = ["native.drain_ms=10s", "journal.tail_bytes=64MiB"];
        let config = load(None, &[], &flags).unwrap();
        assert_eq!(config.get::<u64>("native.drain_ms").unwrap(), 10_000);
        assert_eq!(config.get::<u64>("journal.tail_bytes").unwrap(), 67_108_864);
        let config = load(None, &[], &["native.connections_max=10s"]).unwrap();
        assert!(config.get::<u64>("native.connections_max").is_err());
    }
}
