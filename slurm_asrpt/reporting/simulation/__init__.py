"""The report of simulations: tables, plots and the HTML file."""
