param([string]$Out = "inventory.json")
$services = Get-Service | Where-Object { $_.Status -eq "Running" }
$services | ConvertTo-Json | Set-Content $Out
