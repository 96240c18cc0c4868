function ConvertTo-AssetRow {
    param([Parameter(Mandatory)] $Facts)
    [pscustomobject]@{
        Host   = $Facts.CsName
        OS     = $Facts.OsName
        MemGB  = [math]::Round($Facts.CsTotalPhysicalMemory / 1GB, 1)
        Source = $Facts.Source ?? 'winget'
    }
}
Export-ModuleMember -Function ConvertTo-AssetRow
