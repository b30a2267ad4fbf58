//! Jobs with TLS and tokens: clients, workers, those who manage, and leaders that pass jobs on.

use std::process::Output;

use crate::support::json;

use super::*;

/// A leader that speaks TLS and lets no client in without a token, with files of its own.
struct Secure<'a> {
    place: &'a Place,
    folder: &'static str,
    address: String,
    _running: Running,
}

impl<'a> Secure<'a> {
    fn start(place: &'a Place, folder: &'static str, settings: &[String]) -> Self {
        let made = place.run(&["init", "--secure", "--folder", folder, "--host", "127.0.0.1"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let config = format!("{folder}/gapless.toml");
        let mut words = vec!["leader", "0", "--config", &config, "--json"];
        words.extend(settings.iter().flat_map(|setting| ["--set", setting.as_str()]));
        let mut running = place.start(&words);
        let address = running.first_line()["native"].as_str().expect("an address").to_owned();
        let secure = Self { place, folder, address, _running: running };
        let server = secure.address.clone();
        let admin = |words: &[&str]| {
            let done = secure.run("admin.token", &[words, &["--server", &server]].concat());
            assert!(done.status.success(), "{}", text(&done.stderr));
            done.stdout
        };
        admin(&["auth", "role", "jobs", "allow job.submit,job.work on >"]);
        let token = admin(&["token", "create", "shop", "--role", "jobs"]);
        std::fs::write(secure.file("shop.token"), token).expect("written");
        secure
    }

    fn file(&self, name: &str) -> String {
        self.place.path(self.folder).join(name).display().to_string()
    }

    /// Where a client finds the authority to trust, and its token.
    fn access(&self, token: &str) -> [String; 4] {
        ["--tls-ca".to_owned(), self.file("ca.pem"), "--token-file".to_owned(), self.file(token)]
    }

    fn run(&self, token: &str, words: &[&str]) -> Output {
        let access = self.access(token);
        let access: Vec<&str> = access.iter().map(String::as_str).collect();
        self.place.run(&[&access[..], words].concat())
    }

    /// Asks it, as `shop`.
    fn ask(&self, words: &[&str]) -> Output {
        self.run("shop.token", &[words, &["--leader", &self.address]].concat())
    }

    fn worker(&self) -> Running {
        let access = self.access("shop.token");
        let mut words: Vec<&str> = access.iter().map(String::as_str).collect();
        words.extend(["worker", "--leader", &self.address, "--json", "--allow", "."]);
        let mut worker = self.place.start(&words);
        assert_eq!(worker.first_line()["event"], "working");
        worker
    }
}

#[test]
fn e10_jobs_run_over_tls_with_tokens_and_leaders_pass_them_on_so() {
    let place = Place::new();
    place.exec("here", "echo here $1");
    place.exec("there", "echo there $1");
    let there = Secure::start(&place, "two", &[]);
    let settings = [
        format!("jobs.routes=there={}", there.address),
        format!("jobs.routes_ca={}", there.file("ca.pem")),
        format!("jobs.routes_token_file={}", there.file("shop.token")),
    ];
    let here = Secure::start(&place, "one", &settings);
    let _workers = [here.worker(), there.worker()];
    let submitted =
        |words: &[&str]| json(&here.ask(&[&["job", "submit"], words, &["--json"]].concat()));
    let done = submitted(&["here", "x"]);
    assert_eq!(done["Stdout"], "here x\n");
    assert_eq!(submitted(&["there", "y"])["Stdout"], "there y\n", "the other leads it");
    let id = done["JobId"].as_str().expect("an id");
    let shown = here.ask(&["job", "show", id, "--json"]);
    assert!(text(&shown.stdout).contains("here"), "{}", text(&shown.stderr));

    // Without a token, with one of another leader, and without TLS.
    let submit = ["job", "submit", "here", "z", "--wait", "2s", "--leader", &here.address];
    let ca = ["--tls-ca", &here.file("ca.pem")];
    let refused = place.run(&[&ca[..], &submit].concat());
    assert_eq!(refused.status.code(), Some(5), "{}", text(&refused.stderr));
    let wrong = ["--token-file", &there.file("shop.token")];
    let refused = place.run(&[&ca[..], &wrong, &submit].concat());
    assert_eq!(refused.status.code(), Some(5), "{}", text(&refused.stderr));
    let own = ["--token-file", &here.file("shop.token")];
    let plain = place.run(&[&own[..], &submit].concat());
    assert_eq!(plain.status.code(), Some(4), "{}", text(&plain.stderr));
    // An authority that did not sign its certificate is not enough.
    let distrusted = ["--tls-ca", &there.file("ca.pem")];
    let distrusted = place.run(&[&distrusted[..], &own, &submit].concat());
    assert_eq!(distrusted.status.code(), Some(4), "{}", text(&distrusted.stderr));
}
