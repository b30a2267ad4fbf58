//! Connection strings: read, and shown without their secrets.
//!
//! What is shown is put together from what may be shown; nothing is cut out of the text, where a
//! secret in a form that was not thought of would stay. Errors name no value either.

use std::fmt::Write as _;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::error::OutboxError;

const URLS: [&str; 2] = ["postgres://", "postgresql://"];
const VERIFIES: [&str; 2] = ["sslmode=verify-full", "sslmode=verify-ca"];

/// Options of libpq that the driver does not have: an error may name these, and nothing else of a
/// connection string, which may be a part of a password that was not quoted.
const KNOWN: [&str; 14] = [
    "gssencmode",
    "krbsrvname",
    "passfile",
    "replication",
    "requirepeer",
    "service",
    "sslcert",
    "sslcompression",
    "sslcrl",
    "sslkey",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "fallback_application_name",
];

/// Reads a connection string as libpq does.
pub(crate) fn parse(dsn: &str) -> Result<Config, OutboxError> {
    let url = URLS.iter().find_map(|prefix| dsn.strip_prefix(prefix));
    if let Some(rest) = url {
        let address = rest.split('?').next().unwrap_or_default();
        // The driver takes the first @ for the end of the password, wherever it is, and the rest of
        // the password for a host.
        if rest.matches('@').count() > address.matches('@').count().min(1) {
            let why = "in a URL an @ that is part of a password or a name is written as %40";
            return Err(OutboxError::Dsn(why.to_owned()));
        }
    }
    // The driver knows `require` only, and here it always verifies.
    let text =
        VERIFIES.iter().fold(dsn.to_owned(), |text, each| text.replace(each, "sslmode=require"));
    let parsed: Result<Config, _> = text.parse();
    parsed.map_err(|error| OutboxError::Dsn(why(&error)))
}

/// A connection string as it may be shown: as it is when there is no password in it, else its
/// other parts; `None` when it cannot be read.
pub fn shown(dsn: &str) -> Option<String> {
    let config = parse(dsn).ok()?;
    if config.get_password().is_none() {
        return Some(dsn.to_owned());
    }
    let mut words = String::new();
    let mut word = |name: &str, value: &str| {
        if !value.is_empty() {
            let gap = if words.is_empty() { "" } else { " " };
            let _ = write!(words, "{gap}{name}={}", quoted(value));
        }
    };
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let hosts: Vec<String> = config.get_hosts().iter().map(host).collect();
    word("host", &hosts.join(","));
    let addresses: Vec<String> = config.get_hostaddrs().iter().map(ToString::to_string).collect();
    word("hostaddr", &addresses.join(","));
    let ports: Vec<String> = config.get_ports().iter().map(ToString::to_string).collect();
    word("port", &ports.join(","));
    word("user", config.get_user().unwrap_or_default());
    word("dbname", config.get_dbname().unwrap_or_default());
    let mode = match config.get_ssl_mode() {
        SslMode::Disable => "disable",
        SslMode::Require if dsn.contains(VERIFIES[0]) => "verify-full",
        SslMode::Require if dsn.contains(VERIFIES[1]) => "verify-ca",
        SslMode::Require => "require",
        _ => "",
    };
    word("sslmode", mode);
    word("application_name", config.get_application_name().unwrap_or_default());
    Some(words)
}

/// A value as libpq reads it.
fn quoted(value: &str) -> String {
    if value.contains(|each: char| each.is_whitespace() || each == '\'' || each == '\\') {
        return format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
    }
    value.to_owned()
}

/// Why a connection string cannot be read, without any value in it.
fn why(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let between = |text: &str| text.split('`').nth(1).map(str::to_owned).unwrap_or_default();
    if cause.starts_with("unknown option") {
        let option = between(&cause);
        if KNOWN.contains(&option.as_str()) {
            return format!("the option {option} is not supported");
        }
        return "an option is unknown; a value with spaces stands between ' and '".to_owned();
    }
    if cause.starts_with("invalid value") {
        // The driver names the option only.
        return cause;
    }
    "write it as postgres://user@host/database, or as host=… user=… dbname=…, a value with spaces \
     between ' and '"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "geheim";

    #[test]
    fn a_password_is_shown_in_no_form_of_a_connection_string() {
        for dsn in [
            "postgres://a:geheim@h/d",
            "postgresql://a:geheim@h:5433,i:5434/d?sslmode=verify-full",
            "postgres://a:%67eheim%20geheim@h/d",
            "postgres://a:x/geheim@h/d",
            "postgres://a:geheim@/d?host=/tmp",
            "postgres://h/d?user=a&password=geheim",
            "postgres://h/d?password=geheim&user=a&dbname=d&host=h",
            "postgres://a@h/d?pass%77ord=geheim",
            "postgres://a:x@h/d?password=geheim&application_name=shop",
            "host=h password=geheim user=a dbname=d",
            "host=h password = geheim user=a dbname=d",
            "host=h password='my geheim' user=a dbname=d",
            "host=h password=my\\ geheim user=a dbname=d",
            "host=h password=x password='a\\'geheim' user=a dbname=d",
            "password=geheim\nhost=h\nuser=a\tdbname=d",
        ] {
            let text = shown(dsn).unwrap_or_else(|| panic!("{dsn} can be read"));
            assert!(!text.contains(SECRET) && !text.contains("%67"), "{dsn}: {text}");
            let again = parse(&text).expect("what is shown can be read");
            assert_eq!((again.get_user(), again.get_dbname()), (Some("a"), Some("d")), "{text}");
            assert!(text.contains("host="), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_shown_and_its_error_names_no_value() {
        for dsn in [
            "postgres://a:p@geheim@h/d",
            "postgres://h/d?password=x@geheim",
            "postgres://a@h/d?sslpassword=geheim",
            "host=h sslpassword=geheim",
            "host=h password=my geheim=x",
            "host=h password=my geheim",
            "host=h password='geheim",
            "host=h port=geheim",
            "postgres://a:geheim",
            "postgres://a@h:geheim/d",
            "mysql://a:geheim@h/d",
            "postgres://a@h/d?geheim",
            "Postgres://a:geheim@h/d?x=y",
        ] {
            assert_eq!(shown(dsn), None, "{dsn}");
            let told = parse(dsn).expect_err("it cannot be read").to_string();
            assert!(!told.contains("geheim") && !told.contains("my"), "{dsn}: {told}");
        }
        let told = parse("host=h sslpassword=x").expect_err("not supported").to_string();
        assert!(told.contains("sslpassword is not supported"), "{told}");
    }

    #[test]
    fn without_a_password_it_is_shown_as_it_is() {
        for dsn in ["postgres://a@h/d?sslmode=verify-full", "host=h user=a connect_timeout=3"] {
            assert_eq!(shown(dsn).as_deref(), Some(dsn));
        }
    }
}
