import sys
from google.cloud import storage
from google.oauth2 import service_account
from azure.storage.blob import BlobServiceClient
from ruamel.yaml import YAML

config = YAML().load(open("buckets.yaml"))
client = storage.Client(credentials=service_account.Credentials.from_service_account_info(config))
print(client, BlobServiceClient, sys.argv)
