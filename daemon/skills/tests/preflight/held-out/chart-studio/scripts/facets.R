#!/usr/bin/env Rscript
suppressPackageStartupMessages({
  library(ggplot2)
  library(readr)
})
if (!requireNamespace("ragg", quietly = TRUE)) message("ragg not found, using default device")

args <- commandArgs(trailingOnly = TRUE)
d <- read_csv(args[[1]], show_col_types = FALSE)
p <- ggplot(d, aes(x = x, y = y)) + geom_point() + facet_wrap(args[[2]])
ggsave(args[[3]], p, width = 8, height = 5)
