//! Tests of the measurement of calls.

use super::*;
use crate::error::Error;
use crate::metrics::tests::page_of;

/// Calls a path whose handler gives `answer`, reads the body to its end, and returns the page of metrics.
async fn measure(path: &str, answer: Option<Response<Body>>) -> String {
    let metrics = Arc::<Metrics>::default();
    let layer = CallMetricsLayer::new(&Arc::new(MethodTable::new()), &metrics, None);
    let answer = std::sync::Mutex::new(answer);
    let mut service = layer.layer(tower::service_fn(move |_request: Request<Body>| {
        let taken = answer.lock().expect("lock").take();
        async move {
            match taken {
                Some(answer) => Ok::<_, Infallible>(answer),
                None => std::future::pending().await,
            }
        }
    }));
    let request = Request::post(path).body(Body::empty()).expect("a request");
    let calling = service.call(request);
    // A handler that does not answer is dropped, as for a client that goes away.
    if let Some(response) = futures::FutureExt::now_or_never(calling) {
        let mut body = response.expect("infallible").into_body();
        while let Some(frame) = std::future::poll_fn(|context| {
            http_body::Body::poll_frame(Pin::new(&mut body), context)
        })
        .await
        {
            frame.expect("frame");
        }
    }
    page_of(&metrics)
}

fn sample(method: &str, code: &str) -> String {
    format!(
        "rpc_server_call_duration_seconds_count{{rpc_method=\"{method}\",rpc_response_status_code=\"{code}\"}} 1\n"
    )
}

const UNARY: &str = "/skilld.v1.ServerService/GetServerInfo";
const METHOD: &str = "skilld.v1.ServerService/GetServerInfo";

/// Body that has only trailers.
struct Trailers(Option<HeaderMap>);

impl http_body::Body for Trailers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

fn with_trailers(status: &Status) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers).expect("trailers");
    Response::new(Body::new(Trailers(Some(trailers))))
}

#[tokio::test]
async fn status_is_that_of_the_trailers_or_of_the_headers() {
    let page = measure(UNARY, Some(with_trailers(&Status::ok("")))).await;
    assert!(page.contains(&sample(METHOD, "OK")), "{page}");
    let draining = Status::from(Error::Draining);
    let page = measure(UNARY, Some(draining.into_http())).await;
    assert!(page.contains(&sample(METHOD, "UNAVAILABLE")), "{page}");
}

#[tokio::test]
async fn a_call_whose_client_goes_away_is_cancelled() {
    let page = measure(UNARY, None).await;
    assert!(page.contains(&sample(METHOD, "CANCELLED")), "{page}");
}

#[tokio::test]
async fn the_path_of_an_unknown_method_is_no_label() {
    let unknown = Status::from(Error::NotImplemented { what: "it" });
    let page = measure("/secret.Service/Path", Some(unknown.into_http())).await;
    assert!(page.contains(&sample("_OTHER", "UNIMPLEMENTED")), "{page}");
    assert!(!page.contains("secret"), "{page}");
}

#[tokio::test]
async fn a_request_that_is_not_grpc_is_no_call() {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let page = measure(UNARY, Some(response)).await;
    assert!(!page.contains("rpc_method="), "{page}");
}

#[tokio::test]
async fn refusals_of_a_quota_are_counted_by_tenant_and_resource() {
    let refused = || {
        Status::from(Error::TenantQuota {
            tenant: "a".to_owned(),
            resource: "workspaces",
            used: 3,
            limit: 3,
            retry_after: None,
        })
    };
    for response in [refused().into_http(), with_trailers(&refused())] {
        let page = measure(UNARY, Some(response)).await;
        let line = "skilld_quota_refused_total{tenant=\"a\",resource=\"workspaces\"} 1\n";
        assert!(page.contains(line), "{page}");
    }
    // Limits of the whole server and of a guest are no quotas.
    let other = Status::from(Error::QuotaExceeded {
        subject: "workspaces (workspaces.count_max)".to_owned(),
        limit: 1,
    });
    let page = measure(UNARY, Some(other.into_http())).await;
    assert!(!page.contains("resource="), "{page}");
}
