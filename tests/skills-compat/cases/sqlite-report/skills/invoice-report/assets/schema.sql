CREATE TABLE invoices (
    number INTEGER PRIMARY KEY,
    customer TEXT NOT NULL,
    due TEXT NOT NULL,
    cents INTEGER NOT NULL CHECK (cents > 0),
    paid TEXT NOT NULL CHECK (paid IN ('yes', 'no'))
);
CREATE VIEW open_amounts AS
SELECT customer, count(*) AS invoices, sum(cents) AS cents, min(due) AS oldest
FROM invoices
WHERE paid = 'no'
GROUP BY customer
ORDER BY cents DESC;
