"""The paper's dynamic program over remaining quanta, with bounds that leave out what cannot win."""
