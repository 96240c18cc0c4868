-- Customers by turnover, without cancelled orders.
SELECT customer, count(*) AS orders, sum(amount) AS turnover, max(day)::VARCHAR AS latest
FROM 'work/orders.parquet'
WHERE NOT cancelled
GROUP BY customer
ORDER BY turnover DESC, customer
LIMIT 3
