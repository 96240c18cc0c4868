# Counts the status codes of a log.
{ count[$2]++ }
END { for (code in count) print code, count[code] }
