//! Collector of spans for tests: an OTLP receiver that keeps every request with its headers.

use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use skilld::shutdown::Tasks;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::server::WAIT_MAX;

/// Maximum number of requests that a test has not looked at. The collector does not answer further ones.
const REQUESTS_MAX: usize = 1024;

/// Requests that a collector received.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    received: mpsc::Receiver<(MetadataMap, ExportTraceServiceRequest)>,
    /// Spans of all requests that were looked at.
    pub(crate) spans: Vec<Span>,
    /// Bytes of all requests that were looked at.
    pub(crate) bytes: Vec<u8>,
    /// Headers of the last request that was looked at.
    pub(crate) headers: MetadataMap,
}

struct Receiver(mpsc::Sender<(MetadataMap, ExportTraceServiceRequest)>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (headers, _, message) = request.into_parts();
        // The test has ended if nobody receives.
        drop(self.0.send((headers, message)).await);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector, which ends with the test's runtime.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (sender, received) = mpsc::channel(REQUESTS_MAX);
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Receiver(sender)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        Tasks::default().spawn(server);
        Self {
            address,
            received,
            spans: Vec::new(),
            bytes: Vec::new(),
            headers: MetadataMap::new(),
        }
    }

    /// Waits for the span of a method or of a step with this name.
    pub(crate) async fn wait_for(&mut self, name: &str) -> Span {
        loop {
            if let Some(span) = self.spans.iter().find(|span| span.name == name) {
                return span.clone();
            }
            let next = tokio::time::timeout(WAIT_MAX, self.received.recv())
                .await
                .unwrap_or_else(|_| panic!("no {name} among {:?}", self.names()));
            self.keep(next.expect("it runs"));
        }
    }

    /// Looks at the requests that have come by now.
    pub(crate) fn look(&mut self) {
        while let Ok(next) = self.received.try_recv() {
            self.keep(next);
        }
    }

    /// Returns the names of all spans that were looked at.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.spans.iter().map(|span| span.name.as_str()).collect()
    }

    fn keep(&mut self, (headers, message): (MetadataMap, ExportTraceServiceRequest)) {
        self.headers = headers;
        self.bytes.extend(message.encode_to_vec());
        let spans = message
            .resource_spans
            .into_iter()
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans);
        self.spans.extend(spans);
    }
}

/// Returns a span's attributes as text, sorted.
pub(crate) fn attributes(span: &Span) -> Vec<String> {
    let mut attributes: Vec<String> = span
        .attributes
        .iter()
        .map(|attribute| {
            let value = attribute.value.as_ref().and_then(|any| any.value.as_ref());
            let shown = match value {
                Some(Value::StringValue(text)) => text.clone(),
                Some(Value::IntValue(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            format!("{}={shown}", attribute.key)
        })
        .collect();
    attributes.sort_unstable();
    attributes
}
