//! `gapless config`: what is in force, and where each value came from.

use clap::Args;
use serde_json::{Map, Value, json};

use super::Global;
use crate::config::{Config, DSN, KEYS, Key};
use crate::exit::{Done, Exit};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless config                                what is in force, and why
  gapless config native.listen                  one value
  gapless config > gapless.toml                 the output is a configuration file
  GAPLESS_DURABILITY=written gapless config --set journal.tail_bytes=1048576

Order: defaults, then the file, then the environment, then flags; the last one wins. The last
line says which server commands talk to, and why: a flag, the environment, a context or the default.";

/// Show the configuration in force, and where each value came from
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConfigOptions {
    /// Show only the value of this key
    key: Option<String>,
}

pub(crate) fn run(
    options: &ConfigOptions,
    config: &Config,
    global: &Global,
    out: &mut Output,
) -> Done {
    if let Some(name) = &options.key {
        let key = Config::key(name)?;
        let value = shown(key, config);
        let json = value_json(config, key);
        if out.json {
            out.json_line(&json)?;
        } else {
            out.line(value)?;
        }
        return Ok(Exit::Ok);
    }
    if out.json {
        let row = |key: &Key| (key.name.to_owned(), value_json(config, key));
        let mut all: Map<String, Value> = KEYS.iter().map(row).collect();
        let server = json!({ "value": global.server(), "source": global.source.to_string() });
        all.insert("client.server".to_owned(), server);
        out.line(format_args!("{:#}", Value::Object(all)))?;
        return Ok(Exit::Ok);
    }
    for line in lines(config) {
        let (setting, comment) = line;
        let comment = out.paint.dim(comment);
        out.line(format_args!("{setting:<56} {comment}"))?;
    }
    // A comment, since it is not a setting of a server.
    let talks = format!("# commands talk to {} ({})", global.server(), global.source);
    out.line(out.paint.dim(talks))?;
    Ok(Exit::Ok)
}

/// The number that a text is, if it is one that TOML can hold.
fn number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number| *number >= 0)
}

fn value_json(config: &Config, key: &Key) -> Value {
    let (text, source) = (shown(key, config), config.source(key.name).to_string());
    let value = number(&text).map_or_else(|| text.into(), Value::from);
    json!({ "value": value, "source": source })
}

/// The value of a key, without the password that a connection string may have in it.
fn shown(key: &Key, config: &Config) -> String {
    let text = config.text(key.name);
    if key.name != DSN {
        return text.to_owned();
    }
    gapless_outbox::shown_dsn(text).unwrap_or_else(|| "(cannot be read, so not shown)".to_owned())
}

/// Every key as a line of TOML, and a comment.
fn lines(config: &Config) -> impl Iterator<Item = (String, String)> {
    KEYS.iter().map(|key| {
        let text = shown(key, config);
        let value = match number(&text) {
            Some(number) => number.to_string(),
            None => toml::Value::String(text.clone()).to_string(),
        };
        let hidden =
            if text == config.text(key.name) { "" } else { "; shown without its password" };
        let comment = format!("# {}; {}{hidden}", config.source(key.name), key.help);
        (format!("{} = {value}", key.name), comment)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_connection_string_is_not_shown() {
        for dsn in [
            "postgres://a:geheim@h/d",
            "postgres://a@h/d?password=geheim",
            "postgres://a@h/d?sslpassword=geheim",
            "postgres://a:%67eheim@h/d",
            "host=h password=geheim user=a",
            "host=h password = 'my geheim' user=a",
        ] {
            let config =
                Config::load(None, std::iter::empty(), &[format!("outbox.dsn={dsn}")]).unwrap();
            let text: String = lines(&config).map(|(set, why)| format!("{set} {why}")).collect();
            let one = value_json(&config, Config::key("outbox.dsn").unwrap()).to_string();
            let seen = format!("{text} {one} {config:?}");
            assert!(text.contains("shown without its password"), "{text}");
            assert!(!seen.contains("geheim") && !seen.contains("%67"), "{seen}");
        }
    }

    #[test]
    fn what_is_printed_is_a_configuration_file() {
        let flags = ["data=a \"b\"\\c".to_owned(), "native.drain_ms=7".to_owned()];
        let config = Config::load(None, std::iter::empty(), &flags).unwrap();
        let text: String =
            lines(&config).map(|(setting, comment)| format!("{setting} {comment}\n")).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let again = Config::load(Some(file.path()), std::iter::empty(), &[]).unwrap();
        for key in KEYS {
            assert_eq!(again.text(key.name), config.text(key.name));
        }
    }
}
