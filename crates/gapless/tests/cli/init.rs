//! `gapless init --secure`: a server for other machines, at once; and what such a server never prints.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Ran, Running, alone, gapless, run};

/// What was made, and the server that runs with it.
struct Secure {
    folder: TempDir,
    running: Running,
    native: String,
    http: String,
}

impl Secure {
    fn start() -> (Self, Ran) {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        let within = folder.path().display().to_string();
        let made = alone(&[
            "init",
            "--secure",
            "--folder",
            &within,
            "--host",
            "localhost",
            "--host",
            "127.0.0.1",
        ])
        .ok();
        let mut command = gapless();
        command
            .args(["serve", "--log", "trace", "--config"])
            .arg(folder.path().join("gapless.toml"));
        // As it is in the file, but on free ports.
        command.args(["--listen", "0.0.0.0:0", "--http", "0.0.0.0:0"]);
        let mut running = Running::start(&mut command);
        let port = |line: String| {
            let port = line.trim_end_matches(" (TLS)").rsplit(':').next().map(str::to_owned);
            format!("127.0.0.1:{}", port.expect("a port"))
        };
        let native = port(running.out.until("  native  0.0.0.0:"));
        let http = port(running.out.until("  http    https://"));
        (Self { folder, running, native, http }, made)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    /// A command as clients are told to run it.
    fn run(&self, token_file: &str, words: &[&str]) -> Ran {
        let mut command = gapless();
        command.args(words).env("GAPLESS_SERVER", &self.native);
        command.env("GAPLESS_TLS_CA", self.path("ca.pem"));
        if !token_file.is_empty() {
            command.env("GAPLESS_TOKEN_FILE", self.path(token_file));
        }
        run(&mut command, None)
    }

    fn curl(&self, path: &str, words: &[&str]) -> Ran {
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert", &self.path("ca.pem")]).args(words);
        command.arg(format!("https://{}{path}", self.http));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(&mut command, None)
    }
}

#[test]
fn f3_init_makes_a_server_for_other_machines_that_works_at_once() {
    let (mut server, made) = Secure::start();
    made.shows("gapless serve --config").shows("GAPLESS_TLS_CA=").shows("gapless token create");
    for name in ["ca.pem", "ca.key", "server.pem", "server.key", "admin.token", "gapless.toml"] {
        let mode = std::fs::metadata(server.path(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    server.run("admin.token", &["auth", "whoami"]).ok().shows("admin");
    server.run("admin.token", &["pub", "orders", "x", "--create"]).ok();
    server.run("", &["topic", "ls"]).exits(5).says("does not let this client in");
    let bearer = format!("authorization: Bearer {}", server.read("admin.token").trim());
    server.curl("/v1/topics", &["-H", &bearer]).ok().shows("orders");

    // What is there is not overwritten; a new certificate is taken while the server runs.
    let (folder, before) = (server.path(""), server.read("server.pem"));
    alone(&["init", "--secure", "--folder", &folder]).exits(2).says("is there already");
    assert_eq!(server.read("server.pem"), before);
    alone(&["init", "--renew", "--folder", &folder, "--host", "127.0.0.1"]).ok();
    assert_ne!(server.read("server.pem"), before);
    server.running.err.until("the certificates were read again");
    server.run("admin.token", &["topic", "ls"]).ok().shows("orders");
    alone(&["init", "--folder", &folder]).exits(2);
}

#[test]
fn f3_other_machines_are_not_let_in_without_tls_and_identities() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data").display().to_string();
    for flag in ["--listen", "--http"] {
        alone(&["serve", "--data", &data, flag, "0.0.0.0:0"])
            .exits(2)
            .says("tls.cert = ")
            .says("tls.key = ")
            .says("auth.required = true")
            .says("gapless init --secure")
            .says("--insecure");
        assert!(!Path::new(&data).exists(), "nothing was opened");
    }
    let mut command = gapless();
    command.args(["serve", "--data", &data, "--listen", "0.0.0.0:0", "--http", "", "--insecure"]);
    let mut server = Running::start(&mut command);
    server.out.until("  native  0.0.0.0:");
    server.err.until("other machines may reach this server");
}

#[test]
fn f3_no_secret_is_in_logs_metrics_events_answers_or_the_configuration() {
    let (mut server, made) = Secure::start();
    let mut printed = made.out.join("\n");
    let mut see = |ran: &Ran| printed += &format!("{}\n{}\n", ran.out.join("\n"), ran.err);
    let admin = server.read("admin.token").trim().to_owned();
    let bearer = format!("authorization: Bearer {admin}");
    let json = "content-type: application/json";
    let post = |path: &str, body: &str| server.curl(path, &["-H", &bearer, "-H", json, "-d", body]);
    let mut events = gapless();
    events.args(["events", "--json"]).env("GAPLESS_SERVER", &server.native);
    events.env("GAPLESS_TLS_CA", server.path("ca.pem")).env("GAPLESS_TOKEN", &admin);
    let mut events = Running::start(&mut events);

    let created = server.run("admin.token", &["token", "create", "shop", "--role", "monitor"]).ok();
    let shop = created.out.join("");
    std::fs::write(server.path("shop.token"), &shop).expect("written");
    let (password, wrong) = ("correct horse battery", "wrong horse battery");
    let set = format!(r#"{{"do":"password_set","name":"shop","password":"{password}"}}"#);
    see(&post("/v1/auth", &set).ok());
    let login = |password: &str, more: &[&str]| {
        let body = format!(r#"{{"name":"shop","password":"{password}"}}"#);
        server.curl("/v1/auth/login", &[&["-H", json, "-d", &body], more].concat())
    };
    see(&login(wrong, &[]).ok());
    let head = login(password, &["-D", "-", "-o", "/dev/null"]).ok().out.join("\n");
    let cookie = head.split("gapless_login=").nth(1).and_then(|rest| rest.split(';').next());
    let cookie = cookie.expect("a cookie").to_owned();
    let ticket = post("/v1/auth", r#"{"do":"ticket"}"#).ok().out.join("");
    let ticket = ticket.split('"').find(|part| part.len() > 30).expect("a ticket").to_owned();
    let forged = "gapless_0123456789ab_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let forged_head = format!("authorization: Bearer {forged}");
    see(&server.curl("/v1/topics", &["-H", &forged_head]).ok());
    see(&server.curl(&format!("/v1/topics?ticket={ticket}"), &[]).ok());
    see(&server.run("shop.token", &["topic", "ls"]));
    see(&server.run("admin.token", &["token", "ls"]).ok());
    see(&server.run("admin.token", &["auth", "ls"]).ok());
    see(&server.run("admin.token", &["stats"]).ok());
    see(&server.curl("/metrics", &["-H", &bearer]).ok());
    see(&alone(&["config", "--config", &server.path("gapless.toml")]).ok());
    see(&server.run("admin.token", &["token", "revoke", "shop"]).ok());
    see(&server.run("shop.token", &["topic", "ls"]).exits(5));
    events.out.until("token revoked");
    events.kill();
    server.running.signal("TERM");
    let log = [server.running.err.all(), server.running.out.all()].concat().join("\n");
    assert!(log.contains("stopped cleanly"), "{log}");
    let told = events.out.all().join("\n");

    // The last of three parts, which may have a `_` in it.
    let secret = |token: &str| token.trim().splitn(3, '_').nth(2).unwrap_or_default().to_owned();
    let mut secrets = vec![secret(&admin), secret(&shop), secret(forged), cookie, ticket];
    secrets.extend([password.to_owned(), wrong.to_owned()]);
    for key in ["server.key", "ca.key"] {
        secrets.extend(server.read(key).lines().filter(|line| line.len() > 40).map(str::to_owned));
    }
    for secret in secrets {
        assert!(secret.len() > 15, "{secret:?}");
        for (what, text) in [("answers", &printed), ("the log", &log), ("events", &told)] {
            assert!(!text.contains(&secret), "{secret} is in {what}");
        }
    }
}
