//! Groups of commands: an enum of commands for clap, which runs the one that the user gave.

/// Declares a group of commands, and its `run`, which returns the exit code of the command. A variant holds the
/// arguments of its command, or `=>` names the function of a command without arguments.
macro_rules! command_group {
    ($(#[$meta:meta])* $group:ident {
        $($(#[$attribute:meta])* $variant:ident $(($command:ty))? $(=> $function:path)?,)+
    }) => {
        #[derive(Debug, clap::Subcommand)]
        $(#[$meta])*
        pub(crate) enum $group {
            $($(#[$attribute])* $variant $(($command))?,)+
        }

        impl $group {
            pub(crate) async fn run(self, client: &skilld_client::Client) -> anyhow::Result<u8> {
                match self {
                    $($(Self::$variant(command) => <$command>::run(command, client).await,)?)+
                    $($(Self::$variant => $function(client).await,)?)+
                }
            }
        }
    };
}
pub(crate) use command_group;
