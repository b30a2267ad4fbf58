//! `gapless init`: everything for a server that other machines may reach, made at once.
//!
//! An authority, a certificate of the server signed by it, the token of an administrator, and a
//! configuration that uses them. What is there already is never overwritten, but for the server's
//! certificate when it is renewed. The authority has one fixed name, so that its key alone signs again.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use gapless_auth::{Auth, AuthOptions, Command};
use gapless_broker::{Broker, BrokerOptions};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::config::{Config, Source};
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::permissions;

const EXAMPLES: &str = "\
Examples:
  gapless init --secure                            in this folder; then: gapless serve
  gapless init --secure --folder /etc/gapless --data /srv/gapless --host broker.example
  gapless init --renew --folder /etc/gapless       a new certificate; the server takes it by itself

Keys, the token and the configuration can be read by their owner only. Nothing is overwritten.";

/// How long the authority can sign.
const AUTHORITY_LASTS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long the server's certificate is good: as long as browsers take one of a private authority.
const SERVER_LASTS: Duration = Duration::from_secs(825 * 24 * 3600);
/// How much the clocks of clients may be behind.
const CLOCKS_DIFFER: Duration = Duration::from_secs(3600);
/// Only the owner may read it.
const OWNER_ONLY: u32 = 0o600;

/// Make certificates, an administrator's token and a configuration
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct InitOptions {
    /// Make a server that other machines may reach: TLS, and clients that prove who they are
    #[arg(long, group = "what")]
    secure: bool,
    /// Make a new certificate of the server, signed by the authority that is there
    #[arg(long, group = "what")]
    renew: bool,
    /// Where to put the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// A name or address by which clients reach the server; may be repeated [default: this
    /// machine's name, localhost, 127.0.0.1, ::1]
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
}

/// Where everything is.
struct Files {
    ca: PathBuf,
    ca_key: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    token: PathBuf,
    config: PathBuf,
}

impl Files {
    fn within(folder: &Path) -> Self {
        let at = |name: &str| folder.join(name);
        Self {
            ca: at("ca.pem"),
            ca_key: at("ca.key"),
            cert: at("server.pem"),
            key: at("server.key"),
            token: at("admin.token"),
            config: at("gapless.toml"),
        }
    }

    fn all(&self) -> [&PathBuf; 6] {
        [&self.ca, &self.ca_key, &self.cert, &self.key, &self.token, &self.config]
    }
}

pub(crate) fn run(options: &InitOptions, config: &Config, out: &mut Output) -> Done {
    permissions::apply(config)?;
    std::fs::create_dir_all(&options.folder)
        .map_err(|error| unwritable(&options.folder, &error))?;
    let folder = options.folder.canonicalize();
    let folder = folder.map_err(|error| unwritable(&options.folder, &error))?;
    let files = Files::within(&folder);
    let hosts = if options.host.is_empty() { usual_hosts() } else { options.host.clone() };
    if options.renew {
        return renew(&files, &hosts, out);
    }
    if let Some(there) = files.all().into_iter().find(|path| path.exists()) {
        return Err(Failure::words(format!(
            "{} is there already; nothing was made",
            there.display()
        ))
        .hint("choose another folder with --folder, or renew the certificate with --renew"));
    }
    secure(&files, &hosts, &data_folder(config, &folder), out)
}

fn secure(files: &Files, hosts: &[String], data: &Path, out: &mut Output) -> Done {
    let authority = KeyPair::generate().map_err(unmade)?;
    let params = authority_params();
    let ca = params.self_signed(&authority).map_err(unmade)?.pem();
    let (cert, key) = server_certificate(&Issuer::new(params, &authority), hosts)?;
    let token = admin_token(data)?;
    // The configuration last: with it, everything else is there.
    for (path, text) in [
        (&files.ca, ca),
        (&files.ca_key, authority.serialize_pem()),
        (&files.cert, cert),
        (&files.key, key),
        (&files.token, format!("{token}\n")),
        (&files.config, configuration(files, hosts, data)),
    ] {
        create(path, &text)?;
    }
    let show = |path: &PathBuf| path.display().to_string();
    let (config, ca, token) = (show(&files.config), show(&files.ca), show(&files.token));
    if out.json {
        out.json_line(&json!({
            "config": config, "ca": ca, "token_file": token, "hosts": hosts,
            "data": data.display().to_string(),
        }))?;
        return Ok(Exit::Ok);
    }
    out.line(format_args!("Made for {}, in {}:", hosts.join(", "), folder_of(files)))?;
    out.line("  gapless.toml                  the configuration: TLS, and clients that prove who they are")?;
    out.line("  ca.pem, ca.key                the authority; keep ca.key away from this machine")?;
    out.line("  server.pem, server.key        the server's certificate, good for 825 days")?;
    out.line("  admin.token                   the token of `admin`, who may do everything")?;
    out.line("Next:")?;
    out.line(format_args!("  gapless serve --config {config}"))?;
    out.line(format_args!("  export GAPLESS_TLS_CA={ca} GAPLESS_TOKEN_FILE={token}"))?;
    out.line("  gapless topic ls")?;
    out.line("For each client: copy ca.pem to it, and give it a token of its own, like")?;
    out.line("  gapless auth role writer 'allow publish,subscribe,create on orders.>'")?;
    out.line("  gapless token create shop --role writer")?;
    Ok(Exit::Ok)
}

fn renew(files: &Files, hosts: &[String], out: &mut Output) -> Done {
    let text = std::fs::read_to_string(&files.ca_key).map_err(|error| {
        Failure::words(format!("cannot read {}: {error}", files.ca_key.display()))
            .hint("bring the authority's key back for this, or make a new one: --secure")
    })?;
    let authority = KeyPair::from_pem(&text).map_err(unmade)?;
    let (cert, key) = server_certificate(&Issuer::new(authority_params(), &authority), hosts)?;
    // Both beside the old ones first, then each in their place: a server that looks between the two
    // keeps the old pair.
    for (path, text) in [(&files.key, key), (&files.cert, cert)] {
        let new = path.with_extension("new");
        // One that a crash left is of no use to anyone.
        let _ = std::fs::remove_file(&new);
        create(&new, &text)?;
        std::fs::rename(&new, path).map_err(|error| unwritable(path, &error))?;
    }
    let cert = files.cert.display();
    out.result(
        &json!({ "cert": cert.to_string(), "hosts": hosts }),
        format!(
            "{cert} is new, for {}; a running server takes it within a second",
            hosts.join(", ")
        ),
    )?;
    Ok(Exit::Ok)
}

fn folder_of(files: &Files) -> String {
    files.config.parent().map(|folder| folder.display().to_string()).unwrap_or_default()
}

/// The data folder: the one that was asked for, or one beside the configuration.
fn data_folder(config: &Config, folder: &Path) -> PathBuf {
    let data = Path::new(config.text("data"));
    match (config.source("data"), std::path::absolute(data)) {
        (Source::Default, _) | (_, Err(_)) => folder.join(data),
        (_, Ok(absolute)) => absolute,
    }
}

/// Opens the store, which is created if it is not there, for the token of an administrator.
fn admin_token(data: &Path) -> Result<String, Failure> {
    let broker = Broker::open(BrokerOptions::new(data)).map_err(|error| {
        Failure::failed(format!("cannot open {}: {error}", data.display()))
            .hint("if a server runs there, stop it first")
    })?;
    let made = (|| {
        let auth = Auth::open(&broker, AuthOptions::default()).map_err(Failure::failed)?;
        let command = json!({ "do": "token_create", "name": "admin", "roles": ["admin"] });
        let command = Command::parse(command.to_string().as_bytes()).map_err(Failure::failed)?;
        auth.server().command(command).map_err(Failure::failed)
    })();
    broker.close().map_err(Failure::failed)?;
    let token = made?["token"].as_str().map(str::to_owned);
    token.ok_or_else(|| Failure::failed("the store gave no token"))
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    name(&mut params, "gapless authority", AUTHORITY_LASTS);
    params
}

/// A new certificate of the server and its key, as PEM.
fn server_certificate(
    authority: &Issuer<'_, &KeyPair>,
    hosts: &[String],
) -> Result<(String, String), Failure> {
    let mut params = CertificateParams::new(hosts).map_err(|error| {
        Failure::words(format!("{} cannot be in a certificate: {error}", hosts.join(", ")))
    })?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    name(&mut params, "gapless server", SERVER_LASTS);
    let key = KeyPair::generate().map_err(unmade)?;
    let cert = params.signed_by(&key, authority).map_err(unmade)?;
    Ok((cert.pem(), key.serialize_pem()))
}

fn name(params: &mut CertificateParams, common: &str, lasts: Duration) {
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    let now = SystemTime::now();
    params.not_before = (now - CLOCKS_DIFFER).into();
    params.not_after = (now + lasts).into();
}

fn usual_hosts() -> Vec<String> {
    let machine = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let all = [machine.as_str(), "localhost", "127.0.0.1", "::1"];
    let mut hosts: Vec<String> = all.iter().map(|host| (*host).to_owned()).collect();
    hosts.dedup();
    hosts.retain(|host| !host.is_empty());
    hosts
}

fn configuration(files: &Files, hosts: &[String], data: &Path) -> String {
    let names = hosts.iter().filter(|host| host.parse::<IpAddr>().is_err());
    let names = names.map(String::as_str).collect::<Vec<_>>().join(",");
    let path = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    format!(
        "# Made by `gapless init --secure`. `gapless config` lists all keys.\n\
         data = {}\n\n\
         [native]\nlisten = \"0.0.0.0:4281\"\n\n\
         [http]\nlisten = \"0.0.0.0:4280\"\nhosts = {}\n\n\
         [tls]\ncert = {}\nkey = {}\nclient_ca = {}\n\n\
         [auth]\nrequired = true\n",
        path(data),
        toml::Value::from(names),
        path(&files.cert),
        path(&files.key),
        path(&files.ca),
    )
}

/// Writes a file that is not there yet, for its owner alone.
fn create(path: &Path, text: &str) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(OWNER_ONLY).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn unmade(error: rcgen::Error) -> Failure {
    Failure::failed(format!("a certificate could not be made: {error}"))
}
