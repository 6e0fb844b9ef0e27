"""Kafka as a source and as a sink. Needs the extra ``ebbflow[kafka]``."""
