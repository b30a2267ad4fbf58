//! Jobs as the page sees them: one reading for all who look, and series of what ended.
//!
//! Single jobs are not here: who looks at them asks for them (`/v1/jobs`).

use gapless_jobs::names::snake;
use gapless_jobs::shown::{Overview, Times};
use serde_json::{Value, json};

use crate::http::page::ring::Ring;
use crate::http::page::sampling::HISTORY_POINTS;

/// What happened between two ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    ended_per_s: f64,
    run_ms: Option<u64>,
    wait_ms: Option<u64>,
}

/// The last reading, and what came before it.
pub(crate) struct Jobs {
    now: Option<Overview>,
    at_tick: Option<Overview>,
    points: Ring<Point>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { now: None, at_tick: None, points: Ring::new(HISTORY_POINTS) }
    }
}

impl Jobs {
    /// How all stands now.
    pub(crate) fn read(&mut self, overview: Overview) {
        self.now = Some(overview);
    }

    /// An interval of so many seconds ended. Without a reading nothing is known of it.
    pub(crate) fn tick(&mut self, seconds: f64) {
        if let (Some(now), Some(then)) = (&self.now, &self.at_tick) {
            let ended = |each: &Overview| {
                let totals = &each.totals;
                totals.succeeded + totals.failed + totals.cancelled + totals.dead
            };
            self.points.push(Point {
                ended_per_s: ended(now).saturating_sub(ended(then)) as f64 / seconds,
                run_ms: mean(&now.run, &then.run),
                wait_ms: mean(&now.wait, &then.wait),
            });
        }
        self.at_tick.clone_from(&self.now);
    }

    /// The series of the charts.
    pub(crate) fn history(&self) -> [(&'static str, Value); 3] {
        let tenths = |number: f64| (number * 10.0).round() / 10.0;
        let points = || self.points.iter();
        [
            ("jobs_ended", points().map(|point| tenths(point.ended_per_s)).collect()),
            ("job_run_ms", points().map(|point| point.run_ms).collect()),
            ("job_wait_ms", points().map(|point| point.wait_ms).collect()),
        ]
    }

    /// How all stands, with so many workers and clients at most; null when no jobs are led here.
    pub(crate) fn shown(&self, rows: usize) -> Value {
        let Some(now) = &self.now else { return Value::Null };
        let (workers, clients) = (now.workers.len(), now.clients.len());
        let few = Overview {
            workers: now.workers.iter().take(rows).cloned().collect(),
            clients: now.clients.iter().take(rows).cloned().collect(),
            ..*now
        };
        let mut shown = snake(serde_json::to_value(few).expect("an overview is plain data"));
        shown["worker_count"] = json!(workers);
        shown["client_count"] = json!(clients);
        shown
    }
}

/// What those took on average that were measured between two readings.
fn mean(now: &Times, then: &Times) -> Option<u64> {
    let sum = now.sum_ms.saturating_sub(then.sum_ms);
    sum.checked_div(now.count.saturating_sub(then.count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_jobs::shown::{ClientShown, Totals};

    fn overview(succeeded: u64, run: (u64, u64)) -> Overview {
        Overview {
            totals: Totals { succeeded, ..Totals::default() },
            run: Times { count: run.0, sum_ms: run.1, ..Times::default() },
            ..Overview::default()
        }
    }

    #[test]
    fn a_point_has_what_ended_since_the_last_tick_and_how_long_it_ran() {
        let mut jobs = Jobs::default();
        jobs.tick(1.0);
        jobs.read(overview(5, (5, 500)));
        // What was before the first look is no part of the chart.
        jobs.tick(1.0);
        jobs.read(overview(9, (7, 540)));
        jobs.tick(2.0);
        jobs.tick(1.0);
        let [ended, run, wait] = jobs.history();
        assert_eq!(ended, ("jobs_ended", json!([2.0, 0.0])));
        assert_eq!(run, ("job_run_ms", json!([20, null])));
        assert_eq!(wait, ("job_wait_ms", json!([null, null])));
    }

    #[test]
    fn only_so_many_clients_are_shown_and_all_are_counted() {
        let client = |number: u32| ClientShown {
            client_id: number.to_string(),
            connected: true,
            cap: 1,
            in_flight: 0,
            open: 0,
        };
        let mut jobs = Jobs::default();
        assert_eq!(jobs.shown(9), Value::Null);
        jobs.read(Overview { clients: (0..5).map(client).collect(), ..Overview::default() });
        let shown = jobs.shown(2);
        assert_eq!(shown["clients"].as_array().map(Vec::len), Some(2));
        assert_eq!((&shown["client_count"], &shown["worker_count"]), (&json!(5), &json!(0)));
    }
}
