//! Reflection over gRPC: finds the files of the API by their names, by symbols and by extensions. tonic's own service
//! knows no extensions, and ends the stream of a client whose look-up fails.
//!
//! Both versions of the protocol have the same messages on the wire, so the older one is answered by the newer one.

use futures::StreamExt;
use futures::stream::BoxStream;
use prost::Message;
use prost_reflect::{DescriptorPool, FileDescriptor, MessageDescriptor, ServiceDescriptor};
use skilld_proto::v1::FILE_DESCRIPTOR_SET;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::server_reflection_server::{
    ServerReflection, ServerReflectionServer,
};
use tonic_reflection::pb::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use tonic_reflection::pb::v1alpha::{self, server_reflection_server as alpha_server};

use crate::error::{Error, Result};

/// Encoded file sets of the API and of the standard services. With the types of tonic-types, clients decode the details
/// of errors.
const FILE_SETS: [&[u8]; 5] = [
    FILE_DESCRIPTOR_SET,
    tonic_health::pb::FILE_DESCRIPTOR_SET,
    tonic_types::pb::FILE_DESCRIPTOR_SET,
    tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    v1alpha::FILE_DESCRIPTOR_SET,
];

/// Maximum number of characters of a client's text that an error repeats.
const SHOWN_CHARS_MAX: usize = 200;

/// Reflection service of both versions. Clones share the descriptors.
#[derive(Debug, Clone)]
pub(super) struct Reflection(DescriptorPool);

// === impl Reflection ===

impl Reflection {
    /// Reads the embedded files.
    ///
    /// # Errors
    /// [`Error::Internal`] if one of them is malformed.
    pub(super) fn new() -> Result<Self> {
        let mut pool = DescriptorPool::new();
        for set in FILE_SETS {
            pool.decode_file_descriptor_set(set)
                .map_err(|error| Error::Internal(format!("reflection: {error}")))?;
        }
        Ok(Self(pool))
    }

    /// Makes the service of version v1.
    pub(super) fn v1(&self) -> ServerReflectionServer<Self> {
        ServerReflectionServer::new(self.clone())
    }

    /// Makes the service of version v1alpha.
    pub(super) fn v1alpha(&self) -> alpha_server::ServerReflectionServer<Self> {
        alpha_server::ServerReflectionServer::new(self.clone())
    }

    /// Answers one request. A look-up that fails is an answer too.
    fn answer(&self, request: ServerReflectionRequest) -> ServerReflectionResponse {
        let answer = request
            .message_request
            .as_ref()
            .map_or_else(
                || Err((Code::InvalidArgument, "the request is empty".to_owned())),
                |asked| self.look_up(asked).ok_or_else(|| not_found(asked)),
            )
            .unwrap_or_else(|(code, error_message)| {
                let error_code = code.into();
                MessageResponse::ErrorResponse(ErrorResponse {
                    error_code,
                    error_message,
                })
            });
        ServerReflectionResponse {
            valid_host: request.host.clone(),
            original_request: Some(request),
            message_response: Some(answer),
        }
    }

    fn look_up(&self, asked: &MessageRequest) -> Option<MessageResponse> {
        let pool = &self.0;
        let file = match asked {
            MessageRequest::FileByFilename(name) => pool.get_file_by_name(name)?,
            MessageRequest::FileContainingSymbol(symbol) => defining_file(pool, symbol)?,
            MessageRequest::FileContainingExtension(extension) => {
                let number = u32::try_from(extension.extension_number).ok()?;
                let extended = pool.get_message_by_name(&extension.containing_type)?;
                extended.get_extension(number)?.parent_file()
            }
            MessageRequest::AllExtensionNumbersOfType(name) => {
                let extended = pool.get_message_by_name(name)?;
                let numbers = extended.extensions().map(|extension| extension.number());
                return Some(MessageResponse::AllExtensionNumbersResponse(
                    ExtensionNumberResponse {
                        base_type_name: name.clone(),
                        extension_number: numbers.flat_map(i32::try_from).collect(),
                    },
                ));
            }
            MessageRequest::ListServices(_) => {
                let names = pool
                    .services()
                    .map(|service| service.full_name().to_owned());
                return Some(MessageResponse::ListServicesResponse(ListServiceResponse {
                    service: names.map(|name| ServiceResponse { name }).collect(),
                }));
            }
        };
        Some(MessageResponse::FileDescriptorResponse(
            FileDescriptorResponse {
                file_descriptor_proto: vec![file.encode_to_vec()],
            },
        ))
    }
}

#[tonic::async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream =
        BoxStream<'static, std::result::Result<ServerReflectionResponse, Status>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> std::result::Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let reflection = self.clone();
        let answers = request
            .into_inner()
            .map(move |request| request.map(|request| reflection.answer(request)));
        Ok(Response::new(answers.boxed()))
    }
}

#[tonic::async_trait]
impl alpha_server::ServerReflection for Reflection {
    type ServerReflectionInfoStream =
        BoxStream<'static, std::result::Result<v1alpha::ServerReflectionResponse, Status>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<v1alpha::ServerReflectionRequest>>,
    ) -> std::result::Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let reflection = self.clone();
        let answer = move |request: v1alpha::ServerReflectionRequest| -> Result<_> {
            let answer = reflection.answer(convert::<ServerReflectionRequest>(&request)?);
            convert::<v1alpha::ServerReflectionResponse>(&answer)
        };
        let answers = request
            .into_inner()
            .map(move |request| answer(request?).map_err(Status::from));
        Ok(Response::new(answers.boxed()))
    }
}

/// Converts a message to the same one of the other version.
fn convert<T: Message + Default>(message: &impl Message) -> Result<T> {
    T::decode(message.encode_to_vec().as_slice())
        .map_err(|error| Error::Internal(format!("reflection: {error}")))
}

/// Returns the file that defines a symbol: a type, a service, an extension, or a member of a type or of a service.
fn defining_file(pool: &DescriptorPool, symbol: &str) -> Option<FileDescriptor> {
    let (scope, name) = symbol.rsplit_once('.').unwrap_or(("", symbol));
    let has_member = |message: &MessageDescriptor| {
        let mut oneofs = message.oneofs();
        message.get_field_by_name(name).is_some() || oneofs.any(|oneof| oneof.name() == name)
    };
    let message = pool
        .get_message_by_name(symbol)
        .or_else(|| pool.get_message_by_name(scope).filter(has_member))
        .map(|message| message.parent_file());
    let service = || {
        let has_method =
            |service: &ServiceDescriptor| service.methods().any(|method| method.name() == name);
        let service = pool
            .get_service_by_name(symbol)
            .or_else(|| pool.get_service_by_name(scope).filter(has_method));
        Some(service?.parent_file())
    };
    let enumeration = || {
        // A value is a name beside its enum, and some clients ask for it within the enum.
        let found = pool.all_enums().find(|candidate| {
            let mut values = candidate.values();
            let is_within = candidate.full_name() == scope;
            candidate.full_name() == symbol
                || values
                    .any(|value| value.full_name() == symbol || (is_within && value.name() == name))
        });
        Some(found?.parent_file())
    };
    let extension = || Some(pool.get_extension_by_name(symbol)?.parent_file());
    message
        .or_else(service)
        .or_else(enumeration)
        .or_else(extension)
}

fn not_found(asked: &MessageRequest) -> (Code, String) {
    let shown = |name: &str| name.chars().take(SHOWN_CHARS_MAX).collect::<String>();
    let what = match asked {
        MessageRequest::FileByFilename(name) => format!("file {:?}", shown(name)),
        MessageRequest::FileContainingSymbol(name) => format!("symbol {:?}", shown(name)),
        MessageRequest::FileContainingExtension(extension) => format!(
            "extension {} of {:?}",
            extension.extension_number,
            shown(&extension.containing_type)
        ),
        MessageRequest::AllExtensionNumbersOfType(name) => format!("type {:?}", shown(name)),
        MessageRequest::ListServices(_) => "service".to_owned(),
    };
    (Code::NotFound, format!("this server has no {what}"))
}
