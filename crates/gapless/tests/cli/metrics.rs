//! `/metrics` of the real server: as `docs/metrics.md` has it, and without what was deleted.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::{DEADLINE, Server};

/// A family as the text or the page has it: its kind.
type Families = BTreeMap<String, String>;

/// The families of the text, each of which must say its kind and what it means, and stand
/// together.
fn families(text: &str) -> Families {
    let mut found = Families::new();
    let mut helped = None;
    let mut current = String::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("help has words");
            assert!(!words.is_empty(), "{line}");
            helped = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type has a kind");
            assert_eq!(helped.take().as_deref(), Some(name), "{name} has no help");
            let before = found.insert(name.to_owned(), kind.to_owned());
            assert_eq!(before, None, "{name} is there twice");
            current = name.to_owned();
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let suffix = name.strip_prefix(&current).expect(line);
            assert!(["", "_bucket", "_sum", "_count"].contains(&suffix), "{line} in {current}");
            let fits = match &*found[&current] {
                "histogram" => !suffix.is_empty(),
                "summary" => suffix != "_bucket",
                _ => suffix.is_empty(),
            };
            assert!(fits, "{line}");
        }
    }
    found
}

/// The families of the page's table.
fn documented() -> Families {
    let page = include_str!("../../../../docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")).map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let name = cells.next().unwrap_or_default().trim_end_matches('`');
        let name = name.split('{').next().unwrap_or_default();
        (name.to_owned(), cells.next().unwrap_or_default().to_owned())
    });
    rows.collect()
}

fn scrape(server: &Server) -> String {
    let (status, text) = server.http_get("/metrics");
    assert_eq!(status, 200);
    text
}

#[test]
fn metrics_are_those_of_the_page_with_their_kinds_and_a_help_text_each() {
    // A node that shares its store shows all there are.
    let shared = ["store.shared=true", "store.url=memory:", "trace.endpoint=http://127.0.0.1:1"];
    let node = ["cluster.node=a", "cluster.listen=127.0.0.1:0"];
    let settings: Vec<_> = shared.into_iter().chain(node).collect();
    let server = Server::with(&settings);
    server.run(&["pub", "orders", "first", "--create"]).ok();
    server.run(&["pub", "orders", "x", "--expect-seq", "99"]).exits(5);
    server.run(&["group", "create", "mailer", "orders"]).ok();
    // An answer is counted once it is sent, so the scrape does not see itself.
    server.http_get("/healthz");
    let (there, documented) = (families(&scrape(&server)), documented());
    for (name, kind) in &there {
        assert_eq!(documented.get(name), Some(kind), "{name} in docs/metrics.md");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
    }
    for name in documented.keys() {
        assert!(there.contains_key(name), "{name} is documented and not shown");
    }
}

#[test]
fn what_is_deleted_is_gone_from_the_metrics_at_once() {
    let server = Server::start();
    server.run(&["topic", "create", "orders"]).ok();
    for group in ["g1", "g2"] {
        server.run(&["group", "create", group, "orders"]).ok();
    }
    let text = scrape(&server);
    assert!(text.contains("\ngapless_group_lag{group=\"g1\"} 0\n"), "{text}");
    assert!(text.contains("\ngapless_group_acked_total{group=\"g2\"} 0\n"), "{text}");
    assert!(text.contains("{topic=\"orders\"}"), "{text}");
    server.run(&["group", "rm", "g1", "--yes"]).ok();
    server.run(&["topic", "rm", "orders", "--yes"]).ok();
    let text = scrape(&server);
    assert!(!text.contains("\"g1\"") && !text.contains("\"orders\""), "{text}");
    assert!(text.contains("\ngapless_group_lag{group=\"g2\"} 0\n"), "{text}");
}

#[test]
fn the_servers_own_subscriptions_and_topics_are_not_counted() {
    let server = Server::start();
    server.run(&["pub", "orders", "first", "--create"]).ok();
    // A dead letter makes a topic of the server's own.
    server.run(&["group", "create", "g", "orders", "--attempts", "1", "--from", "beginning"]).ok();
    let fetched = server.http_post("/v1/groups/g/fetch?max=1&wait_ms=10000", "");
    let lease = serde_json::from_str::<serde_json::Value>(&fetched.1).expect("JSON");
    let lease = &lease["messages"][0]["lease"];
    let said = serde_json::json!({ "leases": [lease] }).to_string();
    assert_eq!(server.http_post("/v1/groups/g/terminate", &said).0, 200, "{fetched:?}");
    let until = Instant::now() + DEADLINE;
    while server.run(&["dlq", "ls", "g"]).ok().out.is_empty() {
        assert!(Instant::now() < until, "no dead letter");
    }
    // Looking at the page's state makes the server listen to its own events.
    server.http_get("/");
    let (status, page) = server.http_get_json("/");
    assert_eq!(status, 200);
    let text = scrape(&server);
    assert!(text.contains("\ngapless_subscriptions 0\n"), "{text}");
    assert!(text.contains("\ngapless_topics 1\n"), "{text}");
    assert_eq!(page["totals"]["topics"], 1, "{page}");
    server.run(&["stats"]).ok().shows("subscriptions            0");
}

#[test]
fn connections_of_every_listener_and_the_process_are_shown() {
    let server = Server::start();
    let mut follower = server.begin(&["sub", "orders", "--json"]);
    let held = std::net::TcpStream::connect(server.http()).expect("connects");
    follower.err.until("waiting for it");
    let text = scrape(&server);
    assert!(text.contains("\ngapless_connections{listener=\"native\"} 1\n"), "{text}");
    // The one that asks, and the one that is held.
    assert!(text.contains("\ngapless_connections{listener=\"http\"} 2\n"), "{text}");
    drop(held);
    let build = format!("gapless_build_info{{version=\"{}\",commit=\"", env!("CARGO_PKG_VERSION"));
    let built = text.lines().find_map(|line| line.strip_prefix(&build)).expect("build info");
    let commit = built.strip_suffix("\"} 1").expect(built);
    // The same as `gapless --version` prints, if it knows one.
    server.run(&["--version"]).ok().shows(commit);
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().parse::<f64>().expect(line)
    };
    assert!(value("process_resident_memory_bytes ") > 1e6);
    assert!(value("process_open_fds ") > 5.0);
    assert!(value("process_start_time_seconds ") > 1.7e9);
    let (free, size) = (value("gapless_disk_free_bytes "), value("gapless_disk_size_bytes "));
    assert!(0.0 < free && free <= size, "{free} of {size}");
}

#[test]
fn times_are_histograms_whose_buckets_add_up() {
    let server = Server::start();
    let mut follower = server.begin(&["sub", "orders", "--json", "--count", "100"]);
    follower.err.until("waiting for it");
    server.run(&["pub", "orders", "x", "--create", "--count", "100"]).ok();
    assert_eq!(follower.wait(), Some(0));
    server.run(&["group", "create", "g", "orders", "--from", "beginning"]).ok();
    server.run(&["sub", "orders", "--group", "g", "--count", "100"]).ok();
    assert_eq!(server.http_get("/v1/topics/orders").0, 200);
    assert_eq!(server.http_get("/v1/topics/nosuch").0, 404);
    assert_eq!(server.http_get("/no/such/path").0, 404);
    let text = scrape(&server);
    for (name, labels) in [
        ("gapless_ack_seconds", ""),
        ("gapless_journal_flush_seconds", ""),
        ("gapless_delivery_seconds", "to=\"subscriber\""),
        ("gapless_delivery_seconds", "to=\"group\""),
        ("gapless_http_request_seconds", "route=\"/v1/topics/{name}\""),
        ("gapless_http_request_seconds", "route=\"other\""),
    ] {
        let value = |row: &str, le: &str| {
            let comma = if labels.is_empty() || le.is_empty() { "" } else { "," };
            let all = format!("{labels}{comma}{le}");
            let all = if all.is_empty() { all } else { format!("{{{all}}}") };
            let row = format!("{name}{row}{all} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&row)).expect(&row);
            line.parse::<f64>().expect(line)
        };
        let count = value("_count", "");
        assert!(count > 0.0 && value("_bucket", "le=\"+Inf\"") == count, "{text}");
        // Deliveries may take less than the millisecond that they are timed with.
        assert!(value("_sum", "") > 0.0 || name == "gapless_delivery_seconds", "{text}");
        let comma = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket{{{labels}{comma}");
        let rows = text.lines().filter(|line| line.starts_with(&bucket));
        let counts: Vec<f64> = rows
            .map(|line| line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect(line))
            .collect();
        assert!(counts.len() > 10 && counts.is_sorted(), "{counts:?}");
    }
    // By route and class; what was delivered is counted in messages.
    for row in [
        "gapless_http_requests_total{route=\"/v1/topics/{name}\",status=\"2xx\"} 1",
        "gapless_http_requests_total{route=\"/v1/topics/{name}\",status=\"4xx\"} 1",
        "gapless_http_requests_total{route=\"other\",status=\"4xx\"} 1",
        "gapless_delivered_messages_total 100",
    ] {
        assert!(text.contains(&format!("\n{row}\n")), "{row} in {text}");
    }
}
