//! Following a job: what it writes as events `output`, its end as the event `result`, which is
//! the last one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::extract::{Extension, State};
use axum::response::Response;
use bytes::Bytes;
use gapless_auth::Caller;
use gapless_core::rights::Right;
use gapless_jobs::names::snake;
use gapless_jobs::visit::{Next, Observer, VisitError};

use super::{JobPath, known};
use crate::http::follow::event_stream::{Feed, KeepAlive, event_stream, put_event, stream_permit};
use crate::http::listener::server::Shared;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    JobPath(job): JobPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish()?;
    let permit = stream_permit(&shared)?;
    let (leader, _) = known(&shared, &caller, Right::JobSubmit, job).await?;
    let mut observer = leader.observe().await?;
    observer.follow(job).await?;
    let feed = Following { next: Some(wait(observer)) };
    Ok(event_stream(shared, permit, KeepAlive::default(), feed))
}

type Heard = (Observer, Result<Next, VisitError>);
type Waiting = Pin<Box<dyn Future<Output = Heard> + Send>>;

fn wait(mut observer: Observer) -> Waiting {
    Box::pin(async move {
        let next = observer.next().await;
        (observer, next)
    })
}

/// What comes next; `None` behind the end of the job, and when the leader starts again.
struct Following {
    next: Option<Waiting>,
}

impl Feed for Following {
    fn poll_events(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (observer, next) = ready!(next.as_mut().poll(context));
        let (name, value) = match next {
            Ok(Next::Wrote(piece)) => {
                self.next = Some(wait(observer));
                ("output", serde_json::from_slice(&piece).unwrap_or_default())
            }
            Ok(Next::Ended(result)) => {
                self.next = None;
                ("result", serde_json::to_value(*result).expect("a result is plain data"))
            }
            // The stream ends, and the client comes back.
            Err(_) => {
                self.next = None;
                return Poll::Ready(None);
            }
        };
        let mut event = Vec::new();
        put_event(&mut event, Some(name), None, &snake(value).to_string());
        Poll::Ready(Some(event.into()))
    }
}
