"""Pictures, tables and the HTML file of simulations."""
