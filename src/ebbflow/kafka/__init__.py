"""What the Kafka source and sink have in common. Needs the extra ``ebbflow[kafka]``."""
