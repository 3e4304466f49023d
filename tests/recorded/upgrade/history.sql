BEGIN TRANSACTION;
CREATE TABLE marks (name TEXT PRIMARY KEY, time INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
            job_id TEXT NOT NULL, start_time INTEGER NOT NULL, submit_time INTEGER NOT NULL,
            end_time INTEGER NOT NULL, state TEXT NOT NULL, exit_code INTEGER NOT NULL, user TEXT NOT NULL,
            uid INTEGER NOT NULL, group_id TEXT NOT NULL, job_name TEXT NOT NULL, partition TEXT NOT NULL,
            gpus INTEGER NOT NULL, nodes TEXT NOT NULL, profile TEXT NOT NULL, predicted_iterations INTEGER NOT NULL,
            iterations INTEGER NOT NULL, iterations_source TEXT NOT NULL, alpha REAL NOT NULL, program TEXT NOT NULL DEFAULT '', features TEXT NOT NULL DEFAULT '{}', predicted_low INTEGER NOT NULL DEFAULT 0, predicted_high INTEGER NOT NULL DEFAULT 0, predicted_by TEXT NOT NULL DEFAULT '', reported_total INTEGER NOT NULL DEFAULT 0, origin TEXT NOT NULL DEFAULT 'asrptd', forecast_made INTEGER NOT NULL DEFAULT 0, forecast_low INTEGER NOT NULL DEFAULT 0, forecast_median INTEGER NOT NULL DEFAULT 0, forecast_high INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (job_id, start_time)) WITHOUT ROWID;
INSERT INTO "runs" VALUES('1',1,0,1,'COMPLETED',0,'',-1,'0123456789abcdef','','',0,'{}','',90,100,'none',0.0,'','{}',50,200,'group',0,'asrptd',0,0,0,0);
INSERT INTO "runs" VALUES('2',2,0,2,'COMPLETED',0,'',-1,'0123456789abcdef','','',0,'{}','',90,100,'none',0.0,'','{}',50,200,'group',0,'asrptd',0,0,0,0);
INSERT INTO "runs" VALUES('3',3,0,3,'COMPLETED',0,'',-1,'0123456789abcdef','','',0,'{}','',90,100,'none',0.0,'','{}',50,200,'group',0,'asrptd',0,0,0,0);
INSERT INTO "runs" VALUES('4',4,0,4,'COMPLETED',0,'',1000,'fedcba9876543210','','',8,'{"n1": 8}','',0,40,'none',0.0,'fedcba9876543210','{"epochs": 4.0}',0,0,'',0,'asrptd',0,0,0,0);
INSERT INTO "runs" VALUES('5',5,0,5,'COMPLETED',0,'',1000,'fedcba9876543210','','',8,'{"n1": 8}','',0,50,'none',0.0,'fedcba9876543210','{"epochs": 5.0}',0,0,'',0,'asrptd',0,0,0,0);
INSERT INTO "runs" VALUES('6',6,0,6,'COMPLETED',0,'',1000,'fedcba9876543210','','',8,'{"n1": 8}','',0,60,'none',0.0,'fedcba9876543210','{"epochs": 6.0}',0,0,'',0,'asrptd',0,0,0,0);
INSERT INTO "runs" VALUES('7',7,0,7,'COMPLETED',0,'',1000,'fedcba9876543210','','',8,'{"n1": 8}','',0,70,'none',0.0,'fedcba9876543210','{"epochs": 7.0}',0,0,'',0,'asrptd',0,0,0,0);
CREATE INDEX runs_by_end ON runs (end_time);
COMMIT;
PRAGMA user_version = 4;
